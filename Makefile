# inferlab: one verb per chore. `make` alone lists them.
#
# Needs Python 3.11 or newer, make and a C compiler. Everything goes into .venv in this folder;
# delete the folder and nothing is left behind.
#
#   make lab PYTHON=python3.13        another Python
#   make lab PIP_ARGS="--proxy ..."   extra arguments for pip
#   make lab ARGS="--no-browser"      extra arguments for `inferlab lab`
#   make test ARGS="-k store"         extra arguments for pytest
#   make mutants ARGS=09_moe          only one lesson
#   make train-tiny ARGS=moe          only one of the small models
#   make bench ARGS=--quick           does every benchmark run at all?
#   make site ARGS=--with-solutions   for instructors: worked solutions folded in
#   make wheel STUDENT=1              without worked lessons and hidden named cases

PYTHON   ?= python3
PIP_ARGS ?=
ARGS     ?=
STUDENT  ?=
VENV     := .venv
PY       := $(VENV)/bin/python
READY    := $(VENV)/ready
NEW_ENOUGH := import sys; sys.exit(sys.version_info < (3, 11))

# nbgrader calls `alembic` by its bare name, so the environment comes first on the path.
export PATH := $(CURDIR)/$(VENV)/bin:$(PATH)
# Empty counts as unset: else each command that a test starts compiles the course anew.
export PYTHONDONTWRITEBYTECODE :=

.PHONY: wheel help lab test mutants build lint lock clean env check-python train-tiny bench bench-serve bench-grade serve site
.DEFAULT_GOAL := help

help:
	@echo "make lab    make the environment, fetch the model, open JupyterLab on the first lesson"
	@echo "make test   make the environment, run every test"
	@echo "make mutants  answers that are wrong in one place: do the checks notice? (some minutes)"
	@echo "make build  build solutions/ and notebooks/ from src/ and grader/"
	@echo "make lint   ruff check, ruff format --check, mypy"
	@echo "make train-tiny  train the small models of data/tiny again (under 30 minutes each)"
	@echo "make bench  measure every engine against transformers (10 to 20 minutes, computer left alone)"
	@echo "make serve  serve the small model that comes with the course, at http://127.0.0.1:8000"
	@echo "make bench-serve  two load clients against one server: do they agree? (5 minutes)"
	@echo "make bench-grade  submissions a second, beside nbgrader's own autograding (10 minutes)"
	@echo "make site   build the lessons into a static site (the first time runs each: some minutes)"
	@echo "make wheel  pack the course into dist/, for pip to install (STUDENT=1: for students)"
	@echo "make env    only make the environment"
	@echo "make lock   resolve the newest allowed versions again and write constraints.txt"
	@echo "make clean  delete the environment and caches (never work/)"

lab: env
	@echo "== inferlab: fetching the model (kept in your cache; the lesson also opens without it)"
	@$(PY) -m grader.cli fetch smollm2 || \
	  echo "== inferlab: no model now. Go on: measuring cells will say so. Later: inferlab fetch smollm2"
	@echo "== inferlab: opening JupyterLab (end it with Ctrl-C)"
	@$(PY) -m grader.cli lab $(ARGS)

test: env
	@echo "== inferlab: running every test"
	@$(PY) -m pytest -n auto --maxprocesses 4 --dist loadfile $(ARGS)

mutants: env
	@echo "== inferlab: which wrong answers pass the checks?"
	@PYTHONPATH=tests/helpers $(PY) -m tools.mutants $(ARGS)

build: env
	@echo "== inferlab: building solutions/ and notebooks/"
	@$(PY) -m grader.cli build

lint: env
	@echo "== inferlab: ruff check, ruff format --check, mypy"
	@$(PY) -m ruff check .
	@$(PY) -m ruff format --check .
	@$(PY) -m mypy

train-tiny: env
	@echo "== inferlab: training the small models of data/tiny; interrupt it and it goes on later"
	@$(PY) -m tools.tiny_models.train $(ARGS)

bench: env
	@echo "== inferlab: fetching the model that is measured"
	@$(PY) -m grader.cli fetch smollm2
	@echo "== inferlab: measuring; leave the computer alone meanwhile (Ctrl-C keeps what there is)"
	@$(PY) -m benchmarks.run $(ARGS)

serve: env
	@$(PY) -m grader.cli serve --model tiny-target $(ARGS)

site: env
	@$(PY) -m tools.book $(ARGS)

# With the setuptools of the environment, so no network is needed.
wheel: env
	@echo "== inferlab: packing the course into dist/"
	@INFERLAB_STUDENT=$(STUDENT) $(PY) -m pip wheel --quiet --no-deps --no-build-isolation -w dist .

# guidellm in an environment of its own: it pins other versions than the course does.
bench-serve: env
	@[ -x $(VENV)-bench/bin/guidellm ] || { \
	  echo "== inferlab: installing guidellm in $(VENV)-bench (large)"; \
	  "$(PYTHON)" -m venv --clear $(VENV)-bench && \
	  $(VENV)-bench/bin/python -m pip install --quiet -c constraints.txt $(PIP_ARGS) torch && \
	  $(VENV)-bench/bin/python -m pip install --quiet $(PIP_ARGS) guidellm==0.8.1; }
	@$(PY) -m grader.cli fetch smollm2
	@echo "== inferlab: measuring; leave the computer alone meanwhile"
	@INFERLAB_GUIDELLM=$(CURDIR)/$(VENV)-bench/bin/guidellm $(PY) -m benchmarks.serve $(ARGS)

bench-grade: env
	@echo "== inferlab: grading classes of 1, 30 and 300; leave the computer alone meanwhile"
	@$(PY) -m benchmarks.grading $(ARGS)

# The stamp holds the folder's path: an environment does not survive being moved.
env:
	@if [ -f $(READY) ] && [ "$$(cat $(READY))" != "$$(pwd -P)" ]; then \
	  echo "== inferlab: this folder was moved; the environment is made anew"; rm -rf $(VENV); fi
	@$(MAKE) --no-print-directory $(READY)

# torch first and alone, so that the build of it that pip finds (or that PIP_ARGS names) is the
# one the rest is then installed beside.
$(READY): pyproject.toml setup.py constraints.txt
	@$(PY) -c '$(NEW_ENOUGH)' 2>/dev/null || { \
	  $(MAKE) --no-print-directory check-python && \
	  echo "== inferlab: making the environment in $(VENV)" && \
	  "$(PYTHON)" -m venv --clear $(VENV); }
	@echo "== inferlab: installing torch, pinned by constraints.txt (the largest download)"
	@$(PY) -m pip install -c constraints.txt $(PIP_ARGS) torch
	@echo "== inferlab: installing the rest (about 120 packages, a minute or two)"
	@$(PY) -m pip install --quiet -c constraints.txt $(PIP_ARGS) -e ".[dev]"
	@pwd -P > $(READY)
	@echo "== inferlab: environment ready"

check-python:
	@"$(PYTHON)" -c 'pass' 2>/dev/null || { \
	  echo "inferlab needs Python 3.11 or newer; \"$(PYTHON)\" does not run."; \
	  echo "Install one, or name it: make lab PYTHON=/path/to/python3.11"; exit 1; }
	@"$(PYTHON)" -c '$(NEW_ENOUGH)' || { \
	  echo "inferlab needs Python 3.11 or newer; \"$(PYTHON)\" is $$("$(PYTHON)" -V 2>&1)."; \
	  echo "Install a newer one, or name it: make lab PYTHON=python3.11"; exit 1; }
	@"$(PYTHON)" -c 'import ensurepip, venv' 2>/dev/null || { \
	  echo "\"$(PYTHON)\" cannot make environments: its venv or ensurepip module is missing."; \
	  echo "On Debian and Ubuntu: sudo apt install python3-venv"; exit 1; }

# A fresh environment, no constraints; the local label of a CPU build (+cpu) is no part of a pin.
lock: check-python
	@echo "== inferlab: resolving in $(VENV)-lock"
	@"$(PYTHON)" -m venv --clear $(VENV)-lock
	@$(VENV)-lock/bin/python -m pip install --quiet $(PIP_ARGS) torch~=2.13.0
	@$(VENV)-lock/bin/python -m pip install --quiet $(PIP_ARGS) ".[dev]"
	@{ echo "# The exact set CI tests. pip install -c constraints.txt. Made by: make lock"; \
	  $(VENV)-lock/bin/python -m pip freeze --all | \
	  grep -v -i -E '^(inferlab|pip|nvidia|cuda|triton)' | sed 's/+cpu$$//'; } > constraints.txt.tmp
	@mv constraints.txt.tmp constraints.txt
	@rm -rf $(VENV)-lock
	@echo "== inferlab: wrote constraints.txt; now run: make test"

clean:
	@echo "== inferlab: deleting $(VENV) and caches; work/ stays"
	@rm -rf $(VENV) $(VENV)-lock $(VENV)-bench dist .pytest_cache .mypy_cache .ruff_cache test-artifacts docs/_build *.egg-info
	@find src grader tests tools docs -name __pycache__ -type d -prune -exec rm -rf {} +
