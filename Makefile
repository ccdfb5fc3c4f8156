# Every target builds .venv when it is missing or when the pinned versions changed.
SHELL := /bin/bash -euo pipefail
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
RUNS ?= runs
# Test processes: one a core, four at most, about 1 GiB each. TESTS="-n 0" is one process.
TESTS ?= -n auto --maxprocesses 4

# Waiting threads must not spin: a busy neighbour makes a two-thread step many times slower otherwise.
export OMP_WAIT_POLICY := passive

.PHONY: demo test test-all lint bench ui
.DEFAULT_GOAL := demo

$(STAMP): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
	  || { echo "mulosd needs Python 3.11 or newer; set PYTHON=/path/to/python3.11" >&2; exit 2; }
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev,sr]'
	touch $@

demo: $(STAMP)  ## sweep of the tiny family through Ray, then table, contact sheet and animation
	$(BIN)/python -m pipelines.cli demo --out $(RUNS)/demo

test: $(STAMP)  ## every test that takes seconds
	$(BIN)/python -m pytest tests $(TESTS)

test-all: $(STAMP)  ## the slow ones too
	$(BIN)/python -m pytest tests --slow $(TESTS)

lint: $(STAMP)  ## format, lint, types, import directions: what CI and pre-commit run
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/python -m pytest -q tests/contract/test_imports.py

bench: $(STAMP)  ## latency of the demo's methods, batch 1, interleaved; nothing else should run
	$(BIN)/python -m pipelines.cli bench demo --out $(RUNS)/demo

ui: $(STAMP)  ## MLflow on http://127.0.0.1:5000
	$(BIN)/python -m pipelines.cli ui $(RUNS)/demo
