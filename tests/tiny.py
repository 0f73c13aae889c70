"""A tiny real model and tokenizer, random but for the seed, that think in tags now and then."""

import torch
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

ALPHABET = "0123456789+-=? abcdef"
CHAT = (
    "{% for m in messages %}{{ '<|' + m['role'] + '|>' + m['content'] + '<|end|>' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|assistant|>' }}{% endif %}"
)


def tokenizer(chat_template=None):
    """One token a character, and the tags as tokens of their own."""
    special = ["<pad>", "<|end|>", "<|user|>", "<|assistant|>", "<|system|>"]
    vocabulary = {text: i for i, text in enumerate([*special, "</think>", *ALPHABET])}
    raw = Tokenizer(models.WordLevel(vocabulary, unk_token="<pad>"))
    raw.pre_tokenizer = pre_tokenizers.Split(Regex("."), "isolated")
    raw.decoder = decoders.Fuse()
    fast = PreTrainedTokenizerFast(tokenizer_object=raw, eos_token="<|end|>", pad_token="<pad>")
    fast.add_special_tokens({"additional_special_tokens": special[2:]})
    fast.add_tokens(["</think>"])
    fast.chat_template = chat_template
    return fast


VOCABULARY = len(ALPHABET) + 6


def llama(seed=0, vocabulary=VOCABULARY, **settings):
    torch.manual_seed(seed)
    shape = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2}
    shape |= {"num_attention_heads": 4, "num_key_value_heads": 2, **settings}
    config = LlamaConfig(vocab_size=vocabulary, eos_token_id=1, pad_token_id=0, bos_token_id=None, **shape)
    return LlamaForCausalLM(config)


def save(folder, seed=0, chat_template=CHAT):
    """A folder that loads as a Hugging Face model."""
    llama(seed).save_pretrained(folder)
    tokenizer(chat_template).save_pretrained(folder)
    return folder
