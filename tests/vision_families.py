"""Tiny random vision-language models of several families, with their processors; nothing is downloaded."""

import numpy as np
import torch
from PIL import Image
from tiny import tokenizer
from transformers import (
    CONFIG_MAPPING,
    AutoModelForImageTextToText,
    CLIPImageProcessorPil,
    Gemma3ImageProcessorPil,
    Gemma3Processor,
    Idefics3ImageProcessorPil,
    Idefics3Processor,
    LlavaProcessor,
    Qwen2_5_VLProcessor,
    Qwen2VLImageProcessorPil,
    Qwen3VLProcessor,
)

from branchwise.policy.load import without_videos

CHAT = (
    "{% for m in messages %}{{ '<|' + m['role'] + '|>' }}"
    "{% for part in m['content'] %}{% if part['type'] == 'image' %}PLACE{% else %}{{ part['text'] }}{% endif %}"
    "{% endfor %}{{ '<|end|>' }}{% endfor %}{% if add_generation_prompt %}{{ '<|assistant|>' }}{% endif %}"
)
TOKENS = {
    "image_token": "<|image_pad|>", "video_token": "<|video_pad|>",
    "vision_start_token": "<|vision_start|>", "vision_end_token": "<|vision_end|>",
    "boi_token": "<start_of_image>", "eoi_token": "<end_of_image>",
}  # fmt: skip
IDEFICS = ["<image>", "<fake_token_around_image>", "<end_of_utterance>", "<global-img>", "\n"]
IDEFICS += [f"<row_{i}_col_{j}>" for i in range(1, 7) for j in range(1, 7)]
VOCABULARY = 96

TEXT = {
    "vocab_size": VOCABULARY, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 3,
    "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 2048, "head_dim": 8,
    "pad_token_id": 0, "bos_token_id": None, "eos_token_id": 1, "initializer_range": 0.08,
}  # fmt: skip
MIXED = ["sliding_attention", "full_attention", "sliding_attention"]
ROPE = {"rope_type": "default", "rope_theta": 10000.0, "mrope_section": [1, 1, 2]}
SIGHT = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2}
SIGHT |= {"image_size": 16, "patch_size": 4, "initializer_range": 0.2}
QWEN_SIGHT = {"depth": 2, "hidden_size": 16, "intermediate_size": 32, "num_heads": 2, "patch_size": 4}
QWEN_SIGHT |= {"out_hidden_size": 32, "initializer_range": 0.2}


def fast_tokenizer(place):
    """The text models' tokenizer of characters, and every family's special tokens."""
    fast = tokenizer(CHAT.replace("PLACE", place))
    fast.add_special_tokens(
        {"additional_special_tokens": [*TOKENS.values(), *IDEFICS]}, replace_extra_special_tokens=False
    )
    for name, token in TOKENS.items():
        setattr(fast, name, token)
        setattr(fast, f"{name}_id", fast.convert_tokens_to_ids(token))
    return fast


def _qwen(processor, family, text, sight):
    place = "<|vision_start|><|image_pad|><|vision_end|>"
    fast = fast_tokenizer(place)
    images = Qwen2VLImageProcessorPil(patch_size=4, merge_size=2, size={"shortest_edge": 64, "longest_edge": 1024})
    ids = {f"{name}_id": fast.convert_tokens_to_ids(token) for name, token in TOKENS.items()}
    config = CONFIG_MAPPING[family](
        text_config=TEXT | {"rope_parameters": ROPE} | text, vision_config=QWEN_SIGHT | sight,
        image_token_id=ids["image_token_id"], video_token_id=ids["video_token_id"],
        vision_start_token_id=ids["vision_start_token_id"], vision_end_token_id=ids["vision_end_token_id"],
    )  # fmt: skip
    return config, without_videos(processor)(images, fast, chat_template=fast.chat_template)


def _qwen2_5():
    sight = {"window_size": 16, "fullatt_block_indexes": [1]}
    return _qwen(Qwen2_5_VLProcessor, "qwen2_5_vl", {}, sight)


def _qwen3():
    sight = {"deepstack_visual_indexes": [0, 1], "num_position_embeddings": 16}
    return _qwen(Qwen3VLProcessor, "qwen3_vl", {}, sight)


def _idefics(family):
    fast = fast_tokenizer("<image>")
    images = Idefics3ImageProcessorPil(
        size={"longest_edge": 32}, max_image_size={"longest_edge": 16}, do_image_splitting=True
    )
    config = CONFIG_MAPPING[family](
        text_config=TEXT | {"model_type": "llama"}, vision_config=SIGHT, scale_factor=2,
        image_token_id=fast.convert_tokens_to_ids("<image>"), pad_token_id=0,
    )  # fmt: skip
    return config, Idefics3Processor(images, fast, image_seq_len=4, chat_template=fast.chat_template)


def _gemma3():
    fast = fast_tokenizer("<start_of_image>")
    fast._set_model_specific_special_tokens(TOKENS)  # saved by name, as its published tokenizers have them
    images = Gemma3ImageProcessorPil(size={"height": 16, "width": 16}, image_seq_length=4)
    config = CONFIG_MAPPING["gemma3"](
        text_config=TEXT | {"query_pre_attn_scalar": 8, "sliding_window": 7, "layer_types": MIXED},
        vision_config=SIGHT | {"vision_use_head": False}, mm_tokens_per_image=4,
        boi_token_index=fast.boi_token_id, eoi_token_index=fast.eoi_token_id, image_token_index=fast.image_token_id,
    )  # fmt: skip
    return config, Gemma3Processor(images, fast, image_seq_length=4, chat_template=fast.chat_template)


def _llava():
    fast = fast_tokenizer("<image>")
    fast.image_token = "<image>"
    images = CLIPImageProcessorPil(size={"shortest_edge": 16}, crop_size={"height": 16, "width": 16})
    config = CONFIG_MAPPING["llava"](
        text_config=TEXT | {"model_type": "llama"}, vision_config=SIGHT | {"model_type": "clip_vision_model"},
        image_token_index=fast.convert_tokens_to_ids("<image>"), image_seq_length=16,
    )  # fmt: skip
    processor = LlavaProcessor(
        images, fast, patch_size=4, vision_feature_select_strategy="default", num_additional_image_tokens=1,
        chat_template=fast.chat_template,
    )  # fmt: skip
    return config, processor


FAMILIES = {
    "qwen2_5_vl": _qwen2_5,
    "qwen3_vl": _qwen3,
    "idefics3": lambda: _idefics("idefics3"),
    "smolvlm": lambda: _idefics("smolvlm"),
    "gemma3": _gemma3,
    "llava": _llava,
}


def build(family, seed=0):
    """A model whose pictures matter, and its processor."""
    torch.manual_seed(seed)
    config, processor = FAMILIES[family]()
    model = AutoModelForImageTextToText.from_config(config, attn_implementation="sdpa").eval()
    model.generation_config.eos_token_id, model.generation_config.pad_token_id = 1, 0
    return model, processor


def picture(seed, width=24, height=16):
    return Image.fromarray(np.random.default_rng(seed).integers(0, 255, (height, width, 3), np.uint8))
