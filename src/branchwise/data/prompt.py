"""Prompts to token ids: training, sampling and evaluation all render here."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from branchwise.config import Config, ConfigError
from branchwise.tree import Prompt, Question


class Renderer:
    """Renders prompts to token ids.

    Chat messages go through the model's chat template, with its generation prompt. A tokenizer without one gets the
    messages' texts: a user's apart from its reply by a line break, other turns by a blank line. Plain text stays as it
    is. Where the tokenizer puts special tokens before a text (BOS), they stand there exactly once, whether the template
    writes them, the tokenizer adds them, or both.

    Args:
        tokenizer: a Hugging Face tokenizer.
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
        self.chat_template_kwargs = chat_template_kwargs or {}
        self.max_prompt_tokens = max_prompt_tokens
        self.limit = limit or f"data.max_prompt_tokens: {max_prompt_tokens}"
        bare = tokenizer("a", add_special_tokens=False)["input_ids"]
        full = tokenizer("a", add_special_tokens=True)["input_ids"]
        self._lead = full[: next(i for i in range(len(full)) if full[i : i + len(bare)] == bare)]
        if marker is not None and tokenizer.chat_template:
            self._check_marker(marker)

    @classmethod
    def of(cls, tokenizer: Any, config: Config, positions: int | None = None) -> Renderer:
        """A config's renderer, for a model of so many positions (None: unbounded).

        Raises:
            ConfigError: the longest response alone takes all of them.
        """
        data, s = config.data, config.sampling
        common = (tokenizer, data.chat_template_kwargs, config.tree.marker)
        response = s.max_thought_tokens + s.max_answer_tokens
        if positions is None or positions - response >= data.max_prompt_tokens:
            return cls(*common, data.max_prompt_tokens)
        room = positions - response
        if room < 1:
            raise ConfigError(
                f"sampling.max_thought_tokens: {s.max_thought_tokens} and max_answer_tokens: {s.max_answer_tokens} "
                f"leave no room for a prompt in the model's {positions} positions; lower them"
            )
        limit = f"{room}, which responses of up to {response} leave of the model's {positions} positions"
        return cls(*common, room, limit)

    def text(self, prompt: Prompt) -> str:
        """The prompt as the text that is tokenized."""
        if isinstance(prompt, str):
            return prompt
        if not self.tokenizer.chat_template:
            return _plain(prompt)
        try:
            return self.tokenizer.apply_chat_template(
                prompt, tokenize=False, add_generation_prompt=True, **self.chat_template_kwargs
            )
        except Exception as error:  # Jinja raises whatever the template asks for
            raise ConfigError(
                f"the model's chat template refuses a prompt of roles {[m.get('role') for m in prompt]}: {error}; "
                "see data.system_prompt, data.examples and data.chat_template_kwargs"
            ) from error

    def ids(self, prompt: Prompt) -> list[int]:
        """The prompt's token ids."""
        ids = self.tokenizer(self.text(prompt), add_special_tokens=False)["input_ids"]
        return ids if ids[: len(self._lead)] == self._lead else [*self._lead, *ids]

    def fits(self, question: Question) -> Question | None:
        """The question with its phrasings that are within `max_prompt_tokens`; None where the original is not."""
        fit = [self.max_prompt_tokens is None or len(self.ids(p)) <= self.max_prompt_tokens for p in question.phrasings]
        if not fit[0]:
            return None
        return replace(question, phrasings=tuple(p for p, ok in zip(question.phrasings, fit) if ok))

    def _check_marker(self, marker: str) -> None:
        probe = "the question"
        opening = self.text([{"role": "user", "content": probe}]).rpartition(probe)[2]
        if marker in opening:
            raise ConfigError(
                f"tree.marker: the chat template's generation prompt, {opening!r}, already closes {marker!r}, so no "
                "thought could be sampled; let the template leave thinking open (for many models "
                "data.chat_template_kwargs: {enable_thinking: true}), or set tree.marker: null"
            )


def _plain(messages: list[dict[str, Any]]) -> str:
    text = ""
    for message in messages:
        text += message["content"] + ("\n" if message["role"] == "user" else "\n\n")
    return text
