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
	OMP_NUM_THREADS=1 OPENBLAS_NUM_THREADS=1 $(BIN)/pytest --numprocesses auto --dist worksteal

# the oldest PyTorch that is supported, in an environment of its own
OLDEST := .venv-oldest
test-oldest:
	$(PYTHON) -m venv $(OLDEST)
	$(OLDEST)/bin/pip install --quiet --disable-pip-version-check 'torch==2.10.*' 'torchvision==0.25.*' --editable '.[dev]'
	OMP_NUM_THREADS=1 $(OLDEST)/bin/pytest --numprocesses auto --dist worksteal tests/test_fusion.py tests/test_joint.py tests/test_oracle.py tests/test_networks.py tests/test_surgery.py tests/test_sites.py

# the joint path against the plain composition in float64, in every mode: 20 minutes
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
	$(BIN)/python -m sortnet.experiments.models
	$(BIN)/python -m sortnet.experiments.scale

docs: $(STAMP)
	$(BIN)/python -m sortnet.report.docs

clean:
	rm -rf .venv .venv-oldest .pytest_cache .mypy_cache .ruff_cache .hypothesis
