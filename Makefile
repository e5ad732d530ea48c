# The one list of commands. Everything that runs code makes sure first that the set-up is complete.

PYTHON ?= python3
TORCH_BACKEND ?= auto
FUZZ_SECONDS ?= 600
VENV := .venv
BIN := $(VENV)/bin
# One value in every build, so that cargo never rebuilds the binding for another Python.
export PYO3_PYTHON := $(CURDIR)/$(BIN)/python
NEXTEST := $(shell cargo nextest --version >/dev/null 2>&1 && echo yes)
# What runs in seconds: no model, no engine.
QUICK := not slow and not model and not engine

.DEFAULT_GOAL := help
.PHONY: help setup demo serve import bench peers verify test test-all test-rust test-rust-all test-isa fuzz asan memcheck \
	instruction-count check fmt bench-kernels constraints clean

help: ## Show this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-17s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

setup: ## Make .venv and build the extension (TORCH_BACKEND=auto|cpu|pypi, PYTHON=python3)
	@$(PYTHON) tools/setup --torch-backend '$(TORCH_BACKEND)'

demo: setup ## Import SmolLM2-135M-Instruct and let it answer three prompts in vLLM
	@$(BIN)/vllm-omni demo $(ARGS)

serve: setup ## Serve a model over the OpenAI API (MODEL=folder, ARGS='--port 8000')
	@test -n '$(MODEL)' || { echo "error: MODEL is not set: make serve MODEL=folder" >&2; exit 2; }
	@$(BIN)/vllm-omni serve '$(MODEL)' $(ARGS)

import: setup ## Turn a GGUF file into a model folder (GGUF=file.gguf DIR=folder)
	@test -n '$(GGUF)' -a -n '$(DIR)' || { echo "error: make import GGUF=file.gguf DIR=folder" >&2; exit 2; }
	@$(BIN)/vllm-omni import '$(GGUF)' '$(DIR)'

bench: setup ## The edge harness (ARGS='--help')
	@$(BIN)/vllm-omni bench $(ARGS)

peers: setup ## Build the engines that ours is measured against (PEERS="llama.cpp ik_llama.cpp")
	@$(BIN)/python -m benchmarks.edge_harness.adapters.peers build $(PEERS)

verify: setup ## Every tracked result is valid or retracted
	@$(BIN)/vllm-omni bench verify

# Tests that start an engine in process get a process of their own: vLLM leaves its threads, loggers and the
# configuration of torch.compile behind.
test: setup test-rust ## All tests but the slow ones: cargo, then pytest
	$(BIN)/python -m pytest -m 'not engine and not slow'
	$(BIN)/python -m pytest -m 'engine and not slow'

test-all: setup test-rust-all ## The full matrix, slow tests included
	$(BIN)/python -m pytest -m 'not engine'
	$(BIN)/python -m pytest -m 'engine'

test-rust:
ifeq ($(NEXTEST),yes)
	cargo nextest run --workspace --no-fail-fast
	cargo test --workspace --doc
else
	cargo test --workspace --no-fail-fast
endif

test-rust-all:
ifeq ($(NEXTEST),yes)
	cargo nextest run --workspace --no-fail-fast --run-ignored all
	cargo test --workspace --doc
else
	cargo test --workspace --no-fail-fast -- --include-ignored
endif

test-isa: ## Kernel tests as on another CPU (ISA=scalar|avx2 emulated, avx_vnni|avx512|amx required of this one)
	@tools/test-isa '$(ISA)'

fuzz: ## Fuzz the packed layout's reader and packer with nightly (FUZZ_SECONDS=600 for each)
	@tools/fuzz '$(FUZZ_SECONDS)'

asan: ## Kernel tests under the address sanitizer, with nightly
	@tools/asan

memcheck: ## Kernel tests of exact-size buffers under valgrind: scalar and AVX2
	@tools/memcheck

instruction-count: ## Instructions per kernel under callgrind against the tracked ones (ARGS=--update)
	@$(PYTHON) tools/instruction_count.py $(ARGS)

check: setup ## The two-minute loop: format, lints, types, quick tests
	cargo fmt --all --check
	cargo clippy --workspace --all-targets --quiet -- -D warnings
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy
	$(MAKE) --no-print-directory test-rust
	$(BIN)/python -m pytest -q -m '$(QUICK)'

fmt: setup ## Format Rust and Python in place
	cargo fmt --all
	$(BIN)/ruff check --fix --quiet
	$(BIN)/ruff format

bench-kernels: setup ## Kernels against the read ceiling, and against stock vLLM's (ARGS='gemv --help')
	$(BIN)/python -m benchmarks.kernels $(ARGS)

constraints: ## Resolve tools/setup/constraints.txt anew (UPGRADE=--upgrade for newest versions)
	cp tools/setup/constraints.txt $(VENV)/resolved.txt
	$(BIN)/uv pip compile --quiet --universal --python-version 3.11 --no-annotate --no-header $(UPGRADE) \
		--override tools/setup/overrides.txt pyproject.toml tools/setup/requirements.in -o $(VENV)/resolved.txt
	{ head -1 tools/setup/constraints.txt; sed -e '/^#/d' -e 's/ ;.*//' $(VENV)/resolved.txt; } > $(VENV)/constraints.txt
	mv $(VENV)/constraints.txt tools/setup/constraints.txt

clean: ## Remove .venv, build outputs and caches (not the models)
	rm -rf $(VENV) target vllm_omni/_rust*.so .pytest_cache .mypy_cache .ruff_cache
	find vllm_omni tests benchmarks tools -name __pycache__ -type d -prune -exec rm -rf {} +
