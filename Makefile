# Every target sets up what it needs: a fresh clone and Python 3.11+ are enough.
PYTHON ?= python3
BIN := .venv/bin
STAMP := .venv/.installed

.PHONY: setup demo test lint bench models docs clean

setup: $(STAMP)

$(STAMP): pyproject.toml
	$(PYTHON) -m venv .venv
	$(BIN)/pip install --quiet --disable-pip-version-check --editable '.[dev]'
	touch $@

demo: $(STAMP)
	$(BIN)/sortnet demo

test: lint
	OMP_NUM_THREADS=1 OPENBLAS_NUM_THREADS=1 $(BIN)/pytest --numprocesses auto --dist worksteal

lint: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

bench: $(STAMP)
	$(BIN)/sortnet bench

models: $(STAMP)
	$(BIN)/python -m sortnet.experiments.models
	$(BIN)/python -m sortnet.experiments.scale

docs: $(STAMP)
	$(BIN)/python -m sortnet.report.docs

clean:
	rm -rf .venv .pytest_cache .mypy_cache .ruff_cache .hypothesis
