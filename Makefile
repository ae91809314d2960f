# Every target sets up what it needs: a fresh clone and Python 3.11+ are enough.
PYTHON ?= python3
BIN := .venv/bin
STAMP := .venv/.installed

.PHONY: setup demo test test-oldest oracle chaos lint bench models docs clean

setup: $(STAMP)

$(STAMP): pyproject.toml
	$(PYTHON) -m venv .venv
	$(BIN)/pip install --quiet --disable-pip-version-check --editable '.[dev]'
	touch $@

demo: $(STAMP)
	$(BIN)/sortnet demo

test: lint
	OMP_NUM_THREADS=1 OPENBLAS_NUM_THREADS=1 $(BIN)/pytest --numprocesses auto --dist worksteal -rs

# the library with the oldest supported PyTorch, in a separate environment
OLDEST := .venv-oldest
OLDEST_TESTS := private fusion fused oracle networks surgery sites export weights

$(OLDEST)/.installed: pyproject.toml
	$(PYTHON) -m venv $(OLDEST)
	$(OLDEST)/bin/pip install --quiet --disable-pip-version-check 'torch==2.10.*' 'torchvision==0.25.*' --editable '.[dev]'
	touch $@

test-oldest: $(OLDEST)/.installed
	OMP_NUM_THREADS=1 OPENBLAS_NUM_THREADS=1 $(OLDEST)/bin/pytest --numprocesses auto --dist worksteal $(OLDEST_TESTS:%=tests/test_%.py)

# the fused path against the plain composition in float64, in every mode: 20 minutes
oracle: $(STAMP)
	$(BIN)/python tests/oracle.py --json results/correctness.json

# kills, full disks, changed files and lost processes: at most ten minutes
chaos: $(STAMP)
	OMP_NUM_THREADS=1 $(BIN)/python tests/chaos.py --json results/chaos.json

lint: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

bench: $(STAMP)
	$(BIN)/sortnet bench

models: $(STAMP)
	$(BIN)/python -m tools.survey
	$(BIN)/python -m tools.scale

docs: $(STAMP)
	$(BIN)/python -m tools.docs

clean:
	rm -rf .venv .venv-oldest .pytest_cache .mypy_cache .ruff_cache .hypothesis
