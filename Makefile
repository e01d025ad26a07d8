# Python >= 3.10 and make are all this needs. `make help` lists the targets.

PYTHON ?= python3
# What pip installs as torch. On a machine without a GPU the CPU build saves gigabytes:
#   make sweep TORCH='torch --index-url https://download.pytorch.org/whl/cpu'
TORCH ?= torch
# Options for the command behind a target: make test ARGS='-k routing', make sweep ARGS='--budget 60'.
ARGS ?=

BIN := .venv/bin
INSTALLED := .venv/installed
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check --no-input

SHAPE := --arch gfx950 --model Qwen3.5-397B-A17B --tp 2
TABLE := results/gfx950.yaml

.DEFAULT_GOAL := help
.PHONY: help install sweep test test-slow lint types clean

help: ## this list
	@echo "make TARGET [ARGS='...'] [PYTHON=python3.12] [TORCH='torch==2.13.0']"
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/  \1\t\2/p' $(MAKEFILE_LIST) | expand -t 14

install: $(INSTALLED) ## the virtual environment .venv with attn-tune and all it needs

$(INSTALLED): pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 10))' 2>/dev/null || { \
	  echo "Python 3.10 or newer is needed, but '$(PYTHON)' is $$($(PYTHON) --version 2>&1 | head -1);" \
	    "name another one: make PYTHON=python3.12 $(MAKECMDGOALS)" >&2; exit 1; }
	@echo "Installing into .venv; a first download of torch and Triton can take minutes."
	@$(PYTHON) -m venv .venv || { \
	  echo "'$(PYTHON) -m venv' failed; Debian and Ubuntu have it in the package python3-venv" >&2; exit 1; }
	$(PIP) $(TORCH)
	$(PIP) --editable '.[dev]'
	@touch $@

sweep: $(INSTALLED) ## tune one model for gfx950 without a GPU, show the table, look one shape up
	@mkdir -p results
	$(BIN)/attn-tune sweep $(SHAPE) --out $(TABLE) $(ARGS)
	ATTN_TUNE_CONFIG_DIR=results $(BIN)/attn-tune show $(SHAPE)
	ATTN_TUNE_CONFIG_DIR=results $(BIN)/attn-tune lookup $(SHAPE) --num-seqs 20 --max-seqlen-q 4 --max-seqlen-k 70000

test: $(INSTALLED) ## the tests, on all cores
	$(BIN)/python -m pytest $(ARGS)

test-slow: $(INSTALLED) ## the tests that take minutes
	$(BIN)/python -m pytest -m slow $(ARGS)

lint: $(INSTALLED) types ## ruff and mypy
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy $(ARGS)

# mypy does not know setuptools' package-dir: show it the packages as they are imported.
types:
	@rm -rf build/types && mkdir -p build/types/attn_tune
	@ln -s $(CURDIR)/tuner/* $(CURDIR)/kernels $(CURDIR)/configs build/types/attn_tune/

clean: ## remove the virtual environment, caches, builds and results
	rm -rf .venv build dist results *.egg-info .mypy_cache .ruff_cache .pytest_cache
	find tuner kernels configs tests benchmarks -name __pycache__ -type d -prune -exec rm -rf {} +
