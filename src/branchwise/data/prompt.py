"""Prompts to token ids: training, sampling and evaluation all render here."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from branchwise.config import Config, ConfigError
from branchwise.tree import Images, Prompt, Question, Tree, seedling

PER_TOKEN = ("input_ids", "attention_mask", "token_type_ids", "mm_token_type_ids")
"""What processors give for each token; the rest is of the images."""


class PromptError(ValueError):
    """A prompt that the model's processor refuses."""


class Renderer:
    """Renders prompts to token ids.

    Chat messages go through the model's chat template, with its generation prompt. A tokenizer without one gets the
    messages' texts: a user's apart from its reply by a line break, other turns by a blank line. Plain text stays as it
    is. Where the tokenizer puts special tokens before a text (BOS), they stand there exactly once, whether the template
    writes them, the tokenizer adds them, or both.

    Args:
        tokenizer: a Hugging Face tokenizer (`SeeingRenderer`: a processor).
        chat_template_kwargs: passed to the chat template, such as enable_thinking.
        marker: what ends a thought; None where responses are one segment.
        max_prompt_tokens: longer prompts do not fit.
        limit: what errors and reports call that number.

    Raises:
        ConfigError: the chat template itself closes the marker, so that no thought could be sampled.
    """

    def __init__(
        self,
        tokenizer: Any,
        chat_template_kwargs: dict[str, Any] | None = None,
        marker: str | None = None,
        max_prompt_tokens: int | None = None,
        limit: str | None = None,
    ) -> None:
        self.tokenizer = tokenizer
        self.templates = tokenizer
        """What has the chat template."""
        self.chat_template_kwargs = chat_template_kwargs or {}
        self.max_prompt_tokens = max_prompt_tokens
        self.limit = limit or f"data.max_prompt_tokens: {max_prompt_tokens}"
        self._settle()
        bare = self.tokenizer("a", add_special_tokens=False)["input_ids"]
        full = self.tokenizer("a", add_special_tokens=True)["input_ids"]
        self._lead = full[: next(i for i in range(len(full)) if full[i : i + len(bare)] == bare)]
        if marker is not None and self.templates.chat_template:
            self._check_marker(marker)

    @staticmethod
    def of(processing_class: Any, config: Config, positions: int | None = None) -> Renderer:
        """The renderer of a tokenizer, or of a processor with the images that it prepares.

        Args:
            positions: the model's; None: unbounded.

        Raises:
            ConfigError: the longest response alone takes all of them.
        """
        data, s = config.data, config.sampling
        common = (processing_class, data.chat_template_kwargs, config.tree.marker)
        response = s.max_thought_tokens + s.max_answer_tokens
        if positions is None or positions - response >= data.max_prompt_tokens:
            return renderer_of(*common, data.max_prompt_tokens)
        room = positions - response
        if room < 1:
            raise ConfigError(
                f"sampling.max_thought_tokens: {s.max_thought_tokens} and max_answer_tokens: {s.max_answer_tokens} "
                f"leave no room for a prompt in the model's {positions} positions; lower them"
            )
        limit = f"{room}, which responses of up to {response} leave of the model's {positions} positions"
        return renderer_of(*common, room, limit)

    def _settle(self) -> None:
        """What a renderer needs beside its tokenizer."""

    def text(self, prompt: Prompt) -> str:
        """The prompt as the text that is tokenized."""
        if isinstance(prompt, str):
            return prompt
        if not self.templates.chat_template:
            return _plain(prompt)
        try:
            return self.templates.apply_chat_template(
                self._messages(prompt), tokenize=False, add_generation_prompt=True, **self.chat_template_kwargs
            )
        except Exception as error:  # Jinja raises whatever the template asks for
            raise ConfigError(
                f"the model's chat template refuses a prompt of roles {[m.get('role') for m in prompt]}: {error}; "
                "see data.system_prompt, data.examples and data.chat_template_kwargs"
            ) from error

    def ids(self, prompt: Prompt) -> list[int]:
        """The prompt's token ids."""
        return self._led(self.tokenizer(self.text(prompt), add_special_tokens=False)["input_ids"])

    def prompts(self, question: Question) -> tuple[list[list[int]], Images | None]:
        """The token ids of a question's phrasings, and what stands at the image placeholders among them.

        Raises:
            ConfigError: there are images, and the model takes none.
            PromptError: the model's processor refuses them.
        """
        if question.images:
            raise ConfigError(
                f"question {question.id!r} has images, and the model takes none, or its processor is missing; "
                "choose a vision-language model as model.path"
            )
        return [self.ids(prompt) for prompt in question.phrasings], None

    def seedling(self, question: Question, *, draw: int, step: int, phrasings: int | None = None) -> Tree:
        """A question's tree, with its prompts alone: all, or the first so many."""
        prompts, images = self.prompts(replace(question, phrasings=question.phrasings[:phrasings]))
        return seedling(question, prompts, draw=draw, step=step, images=images)

    def fits(self, question: Question) -> Question | None:
        """The question with its phrasings that are within `max_prompt_tokens`; None where the original is not.

        Raises:
            PromptError: the model's processor refuses it.
        """
        limit = self.max_prompt_tokens
        fit = [limit is None or len(ids) <= limit for ids in self.prompts(question)[0]]
        if not fit[0]:
            return None
        return replace(question, phrasings=tuple(p for p, ok in zip(question.phrasings, fit) if ok))

    def _messages(self, prompt: list[dict[str, Any]]) -> list[dict[str, Any]]:
        return prompt

    def _led(self, ids: list[int]) -> list[int]:
        return ids if ids[: len(self._lead)] == self._lead else [*self._lead, *ids]

    def _check_marker(self, marker: str) -> None:
        probe = "the question"
        opening = self.text([{"role": "user", "content": probe}]).rpartition(probe)[2]
        if marker in opening:
            raise ConfigError(
                f"tree.marker: the chat template's generation prompt, {opening!r}, already closes {marker!r}, so no "
                "thought could be sampled; let the template leave thinking open (for many models "
                "data.chat_template_kwargs: {enable_thinking: true}), or set tree.marker: null"
            )


class SeeingRenderer(Renderer):
    """Renders prompts with images, through a model's processor."""

    def _settle(self) -> None:
        self.processor, self.tokenizer = self.tokenizer, self.tokenizer.tokenizer
        self.templates = self.processor if self.processor.chat_template else self.tokenizer

    def ids(self, prompt: Prompt) -> list[int]:
        return self._processed(prompt, [])[0]

    def prompts(self, question: Question) -> tuple[list[list[int]], Images | None]:
        shown = [picture.image() for picture in question.images]
        found = [self._processed(prompt, shown) for prompt in question.phrasings]
        return [ids for ids, _ in found], Images(found[0][1]) if shown else None

    def _processed(self, prompt: Prompt, images: list[Any]) -> tuple[list[int], dict[str, Any]]:
        """A prompt's ids with as many placeholders as its images have features, and what the encoder is fed."""
        text = self.text(prompt)
        try:
            given = self.processor(text=[text], images=images or None, add_special_tokens=False, return_tensors="pt")
        except (ValueError, IndexError, StopIteration, TypeError) as error:
            raise PromptError(f"the model's processor refuses it, with {len(images)} images: {error}") from error
        ids = given["input_ids"][0].tolist()
        return self._led(ids), {name: value for name, value in given.items() if name not in PER_TOKEN}

    def _messages(self, prompt: list[dict[str, Any]]) -> list[dict[str, Any]]:
        """Every content as a list of parts, which templates of models that see go through."""
        return [
            {**m, "content": [{"type": "text", "text": m["content"]}]} if isinstance(m["content"], str) else m
            for m in prompt
        ]


def renderer_of(processing_class: Any, *args: Any) -> Renderer:
    """The renderer of a tokenizer, or of a processor with images; further arguments as `Renderer`'s."""
    make = SeeingRenderer if hasattr(processing_class, "image_processor") else Renderer
    return make(processing_class, *args)


def _plain(messages: list[dict[str, Any]]) -> str:
    text = ""
    for message in messages:
        text += message["content"] + ("\n" if message["role"] == "user" else "\n\n")
    return text
