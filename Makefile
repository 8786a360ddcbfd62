# Every command of the project. The environment .venv is made when a target needs it, and
# brought up to date when pyproject.toml or constraints.txt change.

PYTHON ?= python3
PIP_FLAGS ?=
JOBS ?= 2

BIN := .venv/bin
STAMP := .venv/.installed
DOCS_STAMP := .venv/.installed-docs
PYTEST = PYTHONDONTWRITEBYTECODE= OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n $(JOBS) --dist worksteal
PYTHONS = $(PYTHON) python3.11 python3.12 python3.13 python3.14 \
	$(wildcard $(HOME)/.pyenv/versions/3.1[1-9]*/bin/python3)
NOTEBOOKS = $(wildcard tutorials/*.ipynb tutorials/research/*.ipynb)
BENCHMARKS = $(filter-out benchmarks.__init__ benchmarks._% benchmarks.verdicts, \
	$(subst /,.,$(basename $(wildcard benchmarks/*.py))))
BENCH_PYTHON ?= $(BIN)/python
METHODS := auto-delta,auto-normal,auto-low-rank-multivariate-normal,auto-multivariate-normal,nuts,auto-rank1-mixture,auto-normal@half-cauchy-scale

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.PHONY: help .venv report test quick test-arviz1 soak mutations check format coverage tutorials docs bench clean

help: ## List the targets
	@awk -F ':.*## ' '/^[.a-z0-9-]+:.*## / { printf "make %-12s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

.venv: $(STAMP) ## Make the environment (PYTHON=python3.11 chooses the interpreter, PIP_FLAGS goes to pip)

$(STAMP): pyproject.toml constraints.txt
	@if ! $(BIN)/python -c 'import pip' 2>/dev/null; then \
	    found=; \
	    for python in $(PYTHONS); do \
	        if "$$python" -c 'import ensurepip, sys, venv; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; \
	        then found="$$python"; break; fi; \
	    done; \
	    if [ -z "$$found" ]; then \
	        echo "make: no Python >= 3.11 with its venv module was found (tried $(PYTHON) and python3.11 to python3.14): install one, or name one, as in 'make .venv PYTHON=/path/to/python3.11'" >&2; \
	        exit 1; \
	    fi; \
	    echo "Making .venv with $$("$$found" --version)"; \
	    "$$found" -m venv --clear .venv; \
	fi
	$(BIN)/python -m pip install $(PIP_FLAGS) --constraint constraints.txt --editable '.[dev]'
	@touch $@

report: $(STAMP) ## The main job: guides, NUTS and three models compared in report/index.html
	$(BIN)/pyro-bnn compare --data diabetes --methods $(METHODS) --reference nuts --out report/

test: $(STAMP) ## All tests, in JOBS processes (2), then those of ArviZ 1.x
	$(PYTEST) --durations=10
	$(MAKE) test-arviz1

quick: $(STAMP) ## One case of each test that is not marked slow
	$(PYTEST) --quick

test-arviz1: $(STAMP) ## The tests of arviz_io under Python >= 3.12 with ArviZ 1.x
	$(BIN)/python tests/run_arviz1.py -n $(JOBS)

soak: $(STAMP) ## The long tests, and the whole of each product (hours); figures go to benchmarks/soak.json
	$(BIN)/python -m pytest tests -m soak --figures benchmarks/soak.json

mutations: $(STAMP) ## Deliberate bugs, and the test that sees each (an hour or more)
	$(BIN)/python tests/mutations.py --jobs $(JOBS)

check: $(STAMP) ## Formatting, lint and types
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy

format: $(STAMP) ## Format the code and mend what ruff can mend
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

coverage: $(STAMP) ## All tests with branch coverage, as a table and in htmlcov/
	$(BIN)/python -m pytest --cov --cov-report=term --cov-report=html

tutorials: $(STAMP) ## Execute the notebooks of tutorials/ in place
	@if [ -z "$(NOTEBOOKS)" ]; then echo "make tutorials: there is no notebook in tutorials/" >&2; exit 1; fi
	$(BIN)/python tests/run_tutorials.py $(NOTEBOOKS)

docs: $(DOCS_STAMP) ## The site of the documentation, in docs/_build/html; a warning or a broken link is an error
	$(BIN)/python docs/build.py

$(DOCS_STAMP): $(STAMP)
	$(BIN)/python -m pip install $(PIP_FLAGS) --constraint constraints.txt --editable '.[dev,docs]'
	@touch $@

bench: $(STAMP) ## Run the comparisons in benchmarks/ (BENCH_PYTHON names the Python of an environment with peers)
	@if [ -z "$(BENCHMARKS)" ]; then echo "make bench: there is no module in benchmarks/" >&2; exit 1; fi
	@set -e; for module in $(BENCHMARKS); do \
	    echo "$(BENCH_PYTHON) -m $$module"; $(BENCH_PYTHON) -m "$$module"; \
	done

clean: ## Remove what the other targets wrote; environments stay
	rm -rf build dist report docs/_build docs/reference/made htmlcov .coverage .hypothesis .mypy_cache .pytest_cache .ruff_cache
	find pyro_bnn guides tests benchmarks -type d -name __pycache__ -prune -exec rm -rf {} +
