# Everything a developer does more than once. The first use of a target sets up .venv; later uses start at once.
#
#   make PYTHON=/usr/bin/python3.12 test                                another interpreter
#   make TORCH_INDEX=https://download.pytorch.org/whl/cpu test          the small CPU build of torch from PyTorch's own index

PYTHON ?= python3
TORCH_INDEX ?=

VENV := .venv
CONSTRAINTS := constraints.txt
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
PIP := $(BIN)/python -m pip --disable-pip-version-check
SOURCES := taso_py verify experiments examples docs tests

.DEFAULT_GOAL := help
.PHONY: help venv demo test oldest lint docs clean

help: ## show the targets
	@sed -n 's/^\([a-z]*\):.*## \(.*\)/  make \1\t\2/p' Makefile | expand -t 16

venv: $(STAMP) ## set up .venv with the pinned versions

demo: $(STAMP) ## optimize a small recurrent network and write build/demo/report.html
	$(BIN)/taso-py optimize zoo:nasrnn --output build/demo
	@$(BIN)/python -m taso_py.models.zoo

lint: $(STAMP) ## ruff check, ruff format --check, pyright
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/pyright

# Two workers, not one a core: each holds its own torch, and tests that build models would otherwise compete for memory.
test: lint ## lint, then the test suite
	$(BIN)/pytest -n 2

oldest: build/constraints-oldest.txt ## the test suite with the oldest PyTorch that is supported, in .venv-oldest
	@$(MAKE) --no-print-directory VENV=.venv-oldest CONSTRAINTS=$< venv
	.venv-oldest/bin/pytest -n 2

build/constraints-oldest.txt: constraints.txt constraints-oldest.txt
	@mkdir -p $(@D)
	@awk -F== 'NR == FNR { pin[$$1] = $$0; next } { print ($$1 in pin ? pin[$$1] : $$0) }' constraints-oldest.txt constraints.txt > $@

docs: $(STAMP) ## build the documentation as a site, build/site/index.html
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict

clean: ## remove what builds and tools left behind, the environment included
	rm -rf $(VENV) .venv-oldest build dist .pytest_cache .ruff_cache .hypothesis
	find $(wildcard $(SOURCES)) -name __pycache__ -type d -prune -exec rm -rf {} +

# torch comes first: once it is there, nothing that depends on it brings a second, larger build. torchvision comes along,
# from the same place where that has it: its compiled operators are for one build of torch. The last line says what to
# install where the two do not fit.
$(STAMP): pyproject.toml $(CONSTRAINTS)
	@command -v "$(PYTHON)" >/dev/null || { echo "no interpreter '$(PYTHON)'; run: make PYTHON=/path/to/python3.11" >&2; exit 1; }
	@$(PYTHON) -c 'import sys; sys.version_info >= (3, 11) or sys.exit("taso-py needs Python 3.11 or newer, this is " + sys.version.split()[0] + "; run: make PYTHON=/path/to/python3.11")'
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@echo "setting up $(VENV); the first time takes some minutes"
	$(PIP) install --quiet --constraint $(CONSTRAINTS) $(if $(TORCH_INDEX),--index-url $(TORCH_INDEX)) torch torchvision
	$(PIP) install --quiet --constraint $(CONSTRAINTS) --editable '.[dask,dev,docs,engines,experiments,generate,onnx,serve,zoo]'
	@$(BIN)/python -m taso_py.models.zoo
	@touch $@
