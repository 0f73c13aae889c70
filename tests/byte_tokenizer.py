"""A real tokenizer with a token for each byte, and whatever further tokens a test needs."""

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, processors
from transformers import PreTrainedTokenizerFast

CHAT = (
    "{% for m in messages %}[{{ m['role'] }}]{{ m['content'] }}{% endfor %}"
    "{% if add_generation_prompt %}[assistant]{% endif %}"
)


def byte_tokenizer(chat_template=CHAT, adds_bos=False, tokens=(), special=()):
    """`tokens` and `special` become one token each; `adds_bos` puts `<s>` before every text, as Llama's does."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    raw = Tokenizer(models.BPE({char: i for i, char in enumerate(alphabet)}, []))
    raw.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    raw.decoder = decoders.ByteLevel()
    raw.add_special_tokens([AddedToken(t, special=True) for t in ("<s>", "</s>", *special)])
    raw.add_tokens(list(tokens))
    if adds_bos:
        raw.post_processor = processors.TemplateProcessing("<s> $A", special_tokens=[("<s>", raw.token_to_id("<s>"))])
    fast = PreTrainedTokenizerFast(tokenizer_object=raw, bos_token="<s>", eos_token="</s>")
    fast.chat_template = chat_template
    return fast
