"""Makes models/shapes: a tiny vision-language model, warmed up by supervised training on drawn pictures."""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Iterable, Iterator
from itertools import islice
from pathlib import Path
from random import Random
from typing import Any

import make_data
import torch
from scenes import SIDE, Problem, guess, problem
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers
from torch import Tensor, nn
from torch.nn import functional
from transformers import (
    CLIPImageProcessorPil,
    CLIPVisionConfig,
    LlamaConfig,
    LlavaConfig,
    LlavaForConditionalGeneration,
    LlavaProcessor,
    PreTrainedTokenizerFast,
)

PATCH = 16
"""Pixels along a patch's side: 16 patches a picture."""
CHAT = (
    "{% for m in messages %}{{ '<|' + m['role'] + '|>' }}"
    "{% if m['content'] is string %}{{ m['content'] }}{% else %}{% for part in m['content'] %}"
    "{% if part['type'] == 'image' %}<image>{% else %}{{ part['text'] }}{% endif %}{% endfor %}{% endif %}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|assistant|><think>' }}{% endif %}"
)
SPECIAL = ["<pad>", "<eos>", "<image>", "<|system|>", "<|user|>", "<|assistant|>", "<think>", "</think>"]
BATCH = 32


def make_tokenizer() -> PreTrainedTokenizerFast:
    """Bytes, and the words and numbers of the pictures' questions and answers as one token each."""
    tokenizer = Tokenizer(models.BPE())
    words = pre_tokenizers.Split(Regex(r" [xyw]\d+| ?[a-zA-Z]+|\d+|[^a-zA-Z\d ]+(?: (?=[\d\[]))?| "), "isolated")
    bytes_ = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([words, bytes_])
    tokenizer.decoder = decoders.ByteLevel()
    random = Random(0)
    texts = [w for p in (problem(random) for _ in range(500)) for w in (*p.wordings, p.response)]
    texts += [f"{n} x{n} y{n} w{n}" for n in range(SIDE) for _ in range(9)]
    tokenizer.train_from_iterator(
        texts,
        trainers.BpeTrainer(
            vocab_size=1000,
            min_frequency=2,
            special_tokens=SPECIAL,
            initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
            show_progress=False,
        ),
    )
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        pad_token="<pad>",
        eos_token="<eos>",
        extra_special_tokens={"image_token": "<image>"},
        chat_template=CHAT,
    )
    fast.padding_side = "right"
    return fast


def make_processor() -> LlavaProcessor:
    images = CLIPImageProcessorPil(
        size={"height": SIDE, "width": SIDE}, do_center_crop=False, image_mean=[0.5] * 3, image_std=[0.5] * 3
    )
    return LlavaProcessor(
        images, make_tokenizer(), patch_size=PATCH, vision_feature_select_strategy="default",
        num_additional_image_tokens=1, chat_template=CHAT,
    )  # fmt: skip


def make_model(processor: LlavaProcessor) -> LlavaForConditionalGeneration:
    tokenizer = processor.tokenizer
    ids = {"pad_token_id": tokenizer.pad_token_id, "eos_token_id": tokenizer.eos_token_id, "bos_token_id": None}
    text = LlamaConfig(
        vocab_size=len(tokenizer), hidden_size=192, intermediate_size=512, num_hidden_layers=4, num_attention_heads=6,
        num_key_value_heads=6, max_position_embeddings=512, tie_word_embeddings=True, initializer_range=0.07, **ids,
    )  # fmt: skip
    vision = CLIPVisionConfig(
        hidden_size=128, intermediate_size=384, num_hidden_layers=4, num_attention_heads=4, image_size=SIDE,
        patch_size=PATCH,
    )  # fmt: skip
    config = LlavaConfig(
        text_config=text, vision_config=vision, image_token_index=tokenizer.convert_tokens_to_ids("<image>"),
        image_seq_length=(SIDE // PATCH) ** 2, vision_feature_layer=-1, tie_word_embeddings=True,
    )  # fmt: skip
    torch.manual_seed(0)
    return LlavaForConditionalGeneration._from_config(config, attn_implementation="eager")


def batch_of(problems: list[Problem], processor: LlavaProcessor, random: Random) -> dict[str, Any]:
    """Inputs and labels; a prompt has no labels."""
    eos = processor.tokenizer.eos_token
    prompts = [prompt_text(random.choice(p.wordings), processor) for p in problems]
    texts = [prompt + p.response + eos for prompt, p in zip(prompts, problems)]
    inputs = processor(
        text=texts, images=[p.picture() for p in problems], padding=True, add_special_tokens=False, return_tensors="pt"
    )
    opened = processor.tokenizer.convert_tokens_to_ids("<think>")
    ids = inputs["input_ids"]
    thought = (ids == opened).cumsum(1) - (ids == opened).long()
    return {**inputs, "labels": ids.masked_fill((thought == 0) | (inputs["attention_mask"] == 0), -100)}


def prompt_text(question: str, processor: LlavaProcessor) -> str:
    content = [{"type": "image"}, {"type": "text", "text": question}]
    return processor.apply_chat_template([{"role": "user", "content": content}], add_generation_prompt=True)


def optimise(parameters: Iterable[nn.Parameter], rate: float, steps: int, losses: Iterator[Tensor], name: str) -> None:
    """AdamW on so many losses, its rate rising, then falling to 0 as a cosine."""
    parameters, start = list(parameters), time.monotonic()
    optimizer = torch.optim.AdamW(parameters, lr=rate, betas=(0.9, 0.98), weight_decay=0.01)
    rises = torch.optim.lr_scheduler.LambdaLR(
        optimizer, lambda step: min(1, (step + 1) / 50) * (0.5 + 0.5 * math.cos(math.pi * step / steps))
    )
    for step, loss in enumerate(islice(losses, steps), start=1):
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(parameters, 1.0)
        optimizer.step()
        rises.step()
        if step % 100 == 0:
            print(f"{name} {step} of {steps}: loss {loss:.3f}, {time.monotonic() - start:.0f} s", flush=True)


def learn_to_see(model: LlavaForConditionalGeneration, processor: LlavaProcessor, steps: int) -> None:
    """Train the encoder and the projector: each patch becomes the words for the shape whose centre it holds."""
    seer, problems = model.model, make_data.warm_up()
    words = seer.get_input_embeddings()
    boxes = nn.Linear(seer.config.vision_config.hidden_size, 4)

    def losses() -> Iterator[Tensor]:
        while True:
            drawn = list(islice(problems, BATCH))
            pixels = processor.image_processor([p.picture() for p in drawn], return_tensors="pt")["pixel_values"]
            features = seer.vision_tower(pixels).last_hidden_state[:, 1:]
            shown = functional.rms_norm(seer.multi_modal_projector(features), [words.embedding_dim])
            logprobs = (shown @ words.weight.T).log_softmax(-1)
            told, box = patches_of(drawn, processor.tokenizer)
            shape = box.sum(-1) > 0
            far = (boxes(features) - box)[shape].abs().mean()
            yield 5 * far + sum(
                functional.nll_loss(logprobs[told[..., i] >= 0], told[..., i][told[..., i] >= 0])
                for i in range(told.shape[-1])
            )

    trained = [seer.vision_tower, seer.multi_modal_projector, words, boxes]
    optimise([p for module in trained for p in module.parameters()], 1.5e-3, steps, losses(), "seeing")


def patches_of(problems: list[Problem], tokenizer: PreTrainedTokenizerFast) -> tuple[Tensor, Tensor]:
    """What each patch should tell: tokens of its shape's colour, kind, centre and size (-1: none), and its box."""
    row = SIDE // PATCH
    told = torch.full((len(problems), row * row, 5), -1)
    told[..., 0] = tokenizer.convert_tokens_to_ids(".")
    box = torch.zeros(len(problems), row * row, 4)
    for i, p in enumerate(problems):
        for (x, y), words, corners in p.seen:
            at = y // PATCH * row + x // PATCH
            ids = tokenizer.convert_tokens_to_ids(["Ġ" + word for word in words.split()])
            told[i, at] = torch.tensor(ids + [-1] * (5 - len(ids)))
            box[i, at] = torch.tensor(corners) / SIDE
    return told, box


def warm_up(
    model: LlavaForConditionalGeneration, processor: LlavaProcessor, steps: int, rate: float, guesses: float = 0.0
) -> None:
    """Supervised training on questions and right responses, or on guesses for such a share of them."""
    random, problems = Random(0), make_data.warm_up()

    def losses() -> Iterator[Tensor]:
        while True:
            with torch.autocast("cpu", torch.bfloat16):
                drawn = [guess(p, random) if random.random() < guesses else p for p in islice(problems, BATCH)]
                loss = model(**batch_of(drawn, processor, random)).loss
            yield loss

    optimise(model.parameters(), rate, steps, losses(), "warm-up")


def make(folder: Path, seeing: int = 1500, steps: int = 1000) -> None:
    processor = make_processor()
    model = make_model(processor)
    learn_to_see(model, processor, seeing)
    warm_up(model, processor, steps, 1e-3)
    warm_up(model, processor, steps // 10 or 1, 3e-4, guesses=0.6)  # what training has to rid it of
    model.save_pretrained(folder)
    processor.save_pretrained(folder)


if __name__ == "__main__":
    make(Path(sys.argv[1] if len(sys.argv) > 1 else "models/shapes"))
