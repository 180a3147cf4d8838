# Every target installs what it needs into .venv, once: the stamps below depend on pyproject.toml.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check
PYTEST_WORKERS ?= 2

.DEFAULT_GOAL := help
.PHONY: help demo test test-slow test-oldest check format bench docs clean

help:  ## show this list
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*##/\t/' | expand -t 16

$(BIN)/python:
	$(PYTHON) -m venv $(VENV)

# One stamp per extra: .venv/.installed-test holds the package with classwise[test], and so on.
$(VENV)/.installed-%: pyproject.toml | $(BIN)/python
	$(PIP) --editable '.[$*]'
	@touch $@

demo: $(VENV)/.installed-lab  ## compare methods on long-tailed digits, write a page
	$(BIN)/classwise compare digits --imbalance exp:50 --methods ce,la,vs,cvs+adrw --seeds 3 --defer-at 0.5

test: $(VENV)/.installed-test  ## run the test-suite
	$(BIN)/python -m pytest -n $(PYTEST_WORKERS)

test-slow: $(VENV)/.installed-test $(VENV)/.installed-ray  ## run what takes longer: kills, a Ray cluster, real CIFAR
	$(BIN)/python -m pytest -m slow

# The lowest torch that the suite passes on, with the packages of its time.
OLDEST := .venv-oldest
$(OLDEST)/.installed: pyproject.toml
	$(PYTHON) -m venv $(OLDEST)
	$(OLDEST)/bin/python -m pip install --quiet --disable-pip-version-check 'torch==2.6.0' --editable '.[test]'
	@touch $@

test-oldest: $(OLDEST)/.installed  ## run the test-suite on the lowest supported torch
	$(OLDEST)/bin/python -m pytest -n $(PYTEST_WORKERS)

check: $(VENV)/.installed-check $(VENV)/.installed-test $(VENV)/.installed-docs $(VENV)/.installed-ray  ## format, lint, types, import rules
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/pyright --warnings
	$(BIN)/lint-imports --no-cache
	$(BIN)/python docs/generate.py --check

format: $(VENV)/.installed-check  ## format and sort what `check` would complain about
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

bench: $(VENV)/.installed-test  ## measure, side by side, what is claimed to be fast
	$(BIN)/python -m benchmarks

docs: $(VENV)/.installed-docs  ## build the documentation into site/
	$(BIN)/python docs/generate.py
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet
	@echo "documentation: site/index.html (with search: python -m http.server --directory site)"

clean:  ## remove what the targets made
	rm -rf $(VENV) $(OLDEST) site build dist .pytest_cache .ruff_cache .hypothesis
