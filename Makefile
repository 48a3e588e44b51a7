# Everything a developer does, by name; `make help` lists it.
# Needs only make and Python 3.11 or later: each target sets up .venv by itself.

PYTHON ?= python3
CORES := $(shell nproc 2>/dev/null || getconf _NPROCESSORS_ONLN)
# Two for each core: the tests wait for disks and clocks more than they compute.
JOBS ?= $(shell expr 2 '*' $(CORES))

# A Spark session is large, and works on two cores by itself.
SPARK_JOBS ?= $(if $(filter 1 2,$(CORES)),1,2)

# What was opened and is not closed fails a test.
STRICT := -W error::ResourceWarning -W error::pytest.PytestUnraisableExceptionWarning

# Where pages can be edited: the address that this clone came from, if it is one of the web.
REPOSITORY ?= $(shell git remote get-url origin 2>/dev/null \
  | sed -nE 's,^(https://)([^@/]*@)?(.*)$$,\1\3,p; s,^git@([^:]+):(.*)$$,https://\1/\2,p' | sed 's,\.git$$,,')

VENV := .venv
RUN := $(VENV)/bin/python -m
READY := $(VENV)/.ready
CODE := $(wildcard src tests tools bench examples)

# Tests start hundreds of processes, and each would compile the project anew where this is set.
export PYTHONDONTWRITEBYTECODE :=

# The stamp holds the path it was made in. A tree that was moved or copied, or whose Python is gone,
# has no working environment, whatever the file times are, and is set up again.
ifneq ($(shell test -x $(VENV)/bin/python && cat $(READY) 2>/dev/null),$(shell pwd -P))
.PHONY: $(READY)
endif

.DEFAULT_GOAL := help
.PHONY: help setup demo test test-long outside oldest verify check types collected format derived contracts bench bench-scale docs screenshots lock clean

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  %-12s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

setup: $(READY) ## create .venv with the pinned dependencies and the project itself, editable

# Not compiled: most modules of the libraries are never imported, and the others are when they are.
$(READY): requirements.txt pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
	  echo "Headwater needs Python 3.11 or later; '$(PYTHON)' is not: try make PYTHON=python3.12" >&2; \
	  exit 1; }
	@test -x $(VENV)/bin/python && test "$$(cat $@ 2>/dev/null)" = "$$(pwd -P)" \
	  || $(PYTHON) -m venv --clear $(VENV) || { \
	  echo "'$(PYTHON) -m venv' failed: install the venv package of this Python" >&2; \
	  exit 1; }
	@echo "Installing what requirements.txt pins into $(VENV) ..."
	@$(RUN) pip install -qq --disable-pip-version-check --no-compile --require-hashes -r requirements.txt
	@$(RUN) pip install -qq --disable-pip-version-check --no-deps --no-build-isolation -e .
	@pwd -P > $@

demo: setup ## run the log, then an application, while processes are killed; exit 0 only if every total agrees
	@$(VENV)/bin/headwater demo
	@$(RUN) examples.rocket_rides --keep

# Those of Spark take what the others leave of the cores while they wait; what they say is shown last.
test: setup ## run all tests on every core, those of Spark beside the others; each part ends with what was not run
	@mkdir -p build
	@$(RUN) pytest -n $(SPARK_JOBS) --dist worksteal tests/spark >build/spark.txt 2>&1 & spark=$$!; \
	  trap 'kill $$spark; wait $$spark; exit 130' INT TERM; \
	  $(RUN) pytest -n $(JOBS) --dist worksteal --ignore=tests/spark; others=$$?; \
	  wait $$spark; spark=$$?; cat build/spark.txt; exit $$((others || spark))

test-long: setup ## run the models for about an hour, and every other proof at length
	@HEADWATER_LONG=1 $(RUN) pytest $(STRICT) -n $(JOBS) --dist worksteal tests/contract
	@HEADWATER_EXAMPLES=3000 $(RUN) pytest -n $(JOBS) --dist worksteal tests/contract -k model
	@HEADWATER_LONG=20 $(RUN) pytest $(STRICT) -n $(JOBS) --dist worksteal tests/fault
	@HEADWATER_LONG=20 $(RUN) pytest -n $(SPARK_JOBS) --dist worksteal tests/spark

outside: setup ## install the wheel, with each extra, into empty environments, and run the first pages there
	@HEADWATER_LONG=1 $(RUN) pytest -n 2 tests/contract/test_outside.py

# An environment of its own: what is pinned, and then the lowest that pyproject.toml allows.
oldest: setup ## run tests on the oldest releases of every dependency that are allowed
	@$(PYTHON) -m venv --clear build/oldest
	@build/oldest/bin/python -m pip install -qq --disable-pip-version-check --require-hashes -r requirements.txt
	@build/oldest/bin/python -m pip install -qq --disable-pip-version-check uv
	@build/oldest/bin/uv pip compile --quiet --resolution lowest-direct --no-header --no-annotate \
	  --extra spark --extra serve pyproject.toml --output-file build/oldest.txt
	@build/oldest/bin/uv pip install --quiet --python build/oldest/bin/python -r build/oldest.txt
	@build/oldest/bin/python -m pip install -qq --disable-pip-version-check --no-deps --no-build-isolation -e .
	@build/oldest/bin/python -m pytest -n $(JOBS) --dist worksteal -m "not slow and not cluster" \
	  tests/unit tests/contract tests/spark/test_versions.py tests/spark/test_batch_read.py

verify: setup ## kill the server, writers and members for ten minutes; nothing may be lost or duplicated
	@$(VENV)/bin/headwater verify --seconds 600 --writers 6 --members 6 --kills 600

check: setup ## check lint, formatting, types, layers, twins, and that every test can be imported
	@$(RUN) ruff check $(CODE)
	@$(RUN) ruff format --check $(CODE)
	@$(RUN) tools.generate_twins --check
	@$(RUN) tools.generate_commands --check
	@$(MAKE) --no-print-directory -j2 types collected
	@$(VENV)/bin/lint-imports

types: setup
	@$(RUN) mypy --num-workers 2 $(CODE)

# Beside mypy. It also compiles the tests once, before several workers need them.
collected: setup
	@mkdir -p build
	@$(RUN) pytest --collect-only -qq >build/collected.txt 2>&1 || { tail -n 40 build/collected.txt; exit 1; }

format: setup ## format the code, and fix what lint can fix
	@$(RUN) ruff format $(CODE)
	@$(RUN) ruff check --fix $(CODE)
	@$(RUN) ruff format --quiet $(CODE)

derived: setup ## after a change of a declaration: write what is made of it anew: blocking classes, commands, pages, golden files
	@$(RUN) tools.generate_twins
	@$(RUN) tools.generate_commands
	@$(RUN) tools.generate_pages
	@$(RUN) tests.support.goldens

contracts: setup ## after a change of a server function's header: renew the pages; after a release: record the contracts
	@$(RUN) tests.support.contracts $(if $(WORDING),--wording)

bench: setup build/peers/.ready ## measure log, outbox, queues, workers, dirty lists, timelines and Spark against their peers, and the longest calls
	@$(RUN) bench

# Libraries that workers are compared with; without them, their rows are left out.
build/peers/.ready: bench/peers.txt
	@$(PYTHON) -m venv --clear build/peers
	@if build/peers/bin/python -m pip install -qq --disable-pip-version-check -r bench/peers.txt; \
	  then touch $@; else echo "some libraries could not be installed, and are not compared" >&2; fi

bench-scale: setup ## grow a log to 100 million messages: memory, write rate, seek latency
	@$(RUN) bench scale

docs: setup ## build the documentation into site/, and check its links
	@NO_MKDOCS_2_WARNING=1 $(if $(REPOSITORY),DOCS_REPOSITORY='$(REPOSITORY)' DOCS_EDIT_URI=edit/main/docs/) $(RUN) mkdocs build --strict --quiet

screenshots: setup ## take the pictures of the console that the pages show; DIR=folder takes every page, light, dark and on a phone
	@$(RUN) tests.support.screenshots $(DIR)

# The lock is made apart from .venv, so that a lock that cannot be installed can be renewed.
lock: ## renew requirements.txt: newest releases that pyproject.toml allows, with hashes
	@$(PYTHON) -m venv build/lock
	@build/lock/bin/python -m pip install -qq --disable-pip-version-check uv
	@build/lock/bin/uv pip compile --quiet --upgrade --universal --python-version 3.11 \
	  --generate-hashes --no-emit-index-url --custom-compile-command "make lock" \
	  --group dev --extra spark --extra serve --extra otel pyproject.toml --output-file requirements.txt

clean: ## remove everything that was made here, except data under .headwater/
	rm -rf $(VENV) build dist site .mypy_cache .ruff_cache .pytest_cache .import_linter_cache .hypothesis
	find src tests tools bench examples -name __pycache__ -type d -prune -exec rm -rf {} + 2>/dev/null || true
