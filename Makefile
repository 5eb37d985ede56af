# Every target sets up what it needs. VENV=path puts the virtual environment elsewhere.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready

.PHONY: setup demo test thorough mutants torture sanitize lint format types vocabulary bench bench-gpu regression examples docs linkcheck wheel all clean

all: lint types test examples ## everything that a change must pass

setup: $(READY) ## virtual environment with the project in it, editable

$(READY): pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet -e ".[dev]"
	touch $@

demo: $(READY) ## the main job on generated data, within a minute
	$(BIN)/chunkflow demo

test: $(READY) ## the tests; those that need a GPU skip themselves without one
	$(BIN)/pytest -n auto --dist loadfile

thorough: $(READY) ## the same with many more random examples and all combinations of parameters, and an hour of random programs
	$(BIN)/pytest -n auto --dist loadfile --hypothesis-profile=thorough
	$(BIN)/python -m tests.fuzz --seconds 3600 --jobs $$(nproc)

mutants: $(READY) ## random small mistakes in the package, which some test must notice: NUMBER of them, from a SEED
	$(BIN)/pip install --quiet -e ".[mutants]"
	PYTHONPATH=tests:. $(BIN)/python -m mutants --number $(or $(NUMBER),300) --seed $(or $(SEED),0)

torture: $(READY) ## faults, full disks, power cuts, kills and the memory of runs, which takes hours: NUMBER of each, from a SEED
	PYTHONPATH=tests:. $(BIN)/python -m torture $(if $(NUMBER),--number $(NUMBER)) --seed $(or $(SEED),0)
	PYTHONPATH=tests:. $(BIN)/python -m torture.full $(if $(NUMBER),--number $(NUMBER)) --seed $(or $(SEED),0)
	PYTHONPATH=tests:. $(BIN)/python -m torture.power $(if $(NUMBER),--number $(NUMBER)) --seed $(or $(SEED),0)
	PYTHONPATH=tests:. $(BIN)/python -m torture.many $(if $(NUMBER),--number $(NUMBER)) --seed $(or $(SEED),0)
	PYTHONPATH=tests:. $(BIN)/python -m torture.kills $(if $(NUMBER),--number $(NUMBER)) --seed $(or $(SEED),0)
	PYTHONPATH=tests:. $(BIN)/python -m torture.kills --points
	PYTHONPATH=tests:. $(BIN)/python -m torture.budgets $(if $(NUMBER),--number $(NUMBER)) --seed $(or $(SEED),0)

sanitize: $(READY) ## the tests of the compiled modules, with AddressSanitizer and UndefinedBehaviorSanitizer
	PYTHONPATH=tests:. $(BIN)/python -m torture.sanitize

lint: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/codespell
	$(BIN)/zizmor --offline --quiet .github

format: $(READY)
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

types: $(READY)
	$(BIN)/mypy

examples: $(READY) ## each script of examples/; what they write is removed
	work=$$(mktemp -d) && trap 'rm -rf "$$work"' EXIT && \
	for script in examples/*.py; do TMPDIR="$$work" $(BIN)/python $$script || exit 1; done

vocabulary: $(READY) ## docs/numpy.md, which a test keeps true
	CHUNKFLOW_WRITE_DOCS=1 $(BIN)/pytest -q tests/api/lazy/test_numpy_dispatch.py -k docs

bench: $(READY) ## the CPU's figures, with their peers beside them
	$(BIN)/pip install --quiet -e ".[dask]" cubed blosc2
	$(BIN)/python -m benchmarks --device cpu --gib 2
	$(BIN)/python -m benchmarks storage overhead operations passes quantiles windows rechunk remote cluster accuracy

bench-gpu: $(READY) ## the same on a GPU, with CuPy installed
	$(BIN)/pip install --quiet -e ".[dask]"
	$(BIN)/python -m benchmarks --device cuda
	$(BIN)/python -m benchmarks streams --profile
	$(BIN)/python -m benchmarks matrices axes points statistics expression copies transforms heat

regression: $(READY) ## on a GPU with CuPy: which shares of limits and peers are lower than they were
	$(BIN)/pip install --quiet -e ".[dask]"
	$(BIN)/python -m benchmarks --device cuda --gib 12 --against benchmarks/kept.json

docs: $(READY) ## the documentation site, in docs/_build/html; any warning is an error
	$(BIN)/pip install --quiet -e ".[docs]"
	$(BIN)/sphinx-build -W --keep-going -j auto -b html docs docs/_build/html

linkcheck: $(READY) ## whether the site's links to other sites lead somewhere; needs a network
	$(BIN)/pip install --quiet -e ".[docs]"
	$(BIN)/sphinx-build -b linkcheck docs docs/_build/linkcheck

wheel: $(READY)
	$(BIN)/pip wheel --quiet --no-deps --wheel-dir dist .

clean:
	rm -rf $(VENV) dist docs/_build docs/auto_gallery docs/reference/generated .mypy_cache .pytest_cache .ruff_cache .hypothesis chunkflow-demo
