# Each target sets up a virtual environment in .venv from the lock files, on Python 3.11 or newer.
# Run `make` without a target for the list.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
RUNTIME := $(VENV)/.runtime
READY := $(VENV)/.installed
CHECKERS := $(VENV)/.checkers
SITE := $(VENV)/.site
QUIET := --quiet --disable-pip-version-check
PIP := PATH="$(CURDIR)/$(BIN):$$PATH" $(BIN)/python -m pip install $(QUIET)
OWN_PIP := $(BIN)/python -m ensurepip --default-pip >/dev/null

# Tests start hundreds of processes. A process that has to compile the package takes twice as long to start, so
# compiled modules are kept, whatever the caller's environment says. COMPILE_ALL also writes those of the package that
# only such processes import.
export PYTHONDONTWRITEBYTECODE =
COMPILE_ALL = @$(BIN)/python -m compileall -q src tests/support

.DEFAULT_GOAL := help
.PHONY: .mypy .basedpyright help demo test coverage check prove mutants deploys torture races simulate tally stores fuzz plans schedules ticks scenarios programs exact neighbours silence nightly servers bench profile pythons compare fix docs page pagecheck site sbom lock clean

help:  ## list the targets
	@grep -hE '^[a-z]+:.*## ' $(MAKEFILE_LIST) | sed 's/:.*## /\t/' | expand -t 12

demo: $(RUNTIME)  ## run a job, kill its worker with kill -9, show the recovery and the verified history
	@PYTHONPATH="$(CURDIR)/src" $(BIN)/python examples/demo.py

# Exhaustive tests, which run without coverage because it would slow them down.
WALKS := tests/machines/test_every_stream.py tests/ready/test_interleavings.py tests/ready/test_gate_interleavings.py

# More than the number of cores, because many tests wait: for processes that they start, and for leases.
SIDE_BY_SIDE = $(shell $(PYTHON) -c 'import os; print(2 * (os.cpu_count() or 1) + 1)')

test: $(READY) pagecheck  ## run all tests, with full branch coverage of the machines and gates
	$(COMPILE_ALL)
	@rm -f .coverage .coverage.*
	@$(BIN)/python tools/find_browser.py
	$(BIN)/coverage run -m pytest -q -n auto --dist worksteal tests/machines tests/ready $(WALKS:%=--ignore=%)
	@$(BIN)/coverage combine --quiet
	$(BIN)/coverage report --include='src/holdfast/machines/*,src/holdfast/ready/*' --fail-under=100
	$(BIN)/python -m pytest -n $(SIDE_BY_SIDE) --dist worksteal $(WALKS) $(filter-out tests/machines/ tests/ready/,$(wildcard tests/*/))

coverage: $(READY)  ## run all tests with coverage of the whole package; slower than test
	$(COMPILE_ALL)
	@rm -f .coverage .coverage.*
	$(BIN)/coverage run -m pytest -n auto --dist worksteal
	@$(BIN)/coverage combine --quiet
	$(BIN)/coverage report --fail-under=95

check: $(CHECKERS)  ## check format, lint, strict types and the types of the public API
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	@$(MAKE) --no-print-directory --jobs 2 --output-sync=target .mypy .basedpyright

.mypy .basedpyright:  # in parallel: each uses one core and takes about as long as the other
	$(BIN)/$(@:.%=%)

DEPTH ?= 11
prove: $(READY)  ## walk every legal job stream up to DEPTH=11; print the tally
	$(BIN)/python tools/prove.py $(DEPTH)

mutants: $(READY)  ## run the tests of machines, gates, plans and values on every mutant of the code; print the tally
	$(COMPILE_ALL)
	HOLDFAST_ALL_MUTANTS=1 $(BIN)/python -m pytest -n $(SIDE_BY_SIDE) tests/tidy/test_mutants.py

KILLS ?= 1000
STORE ?= sqlite
torture: $(READY)  ## kill worker processes, KILLS=1000, STORE=sqlite or postgres; print the tally
	$(BIN)/python tools/torture.py $(KILLS) $(STORE)

ROUNDS ?= 20
deploys: $(READY)  ## roll builds out and back under load on PostgreSQL, kill workers, ROUNDS=20; print the tally
	$(BIN)/python tools/rollouts.py $(ROUNDS)

FAULTS ?= 200
silence: $(READY)  ## break the network between workers and PostgreSQL, FAULTS=200; print the tally
	$(BIN)/python tools/silence.py $(FAULTS)

RACES ?= 2000
races: $(READY)  ## try random orders of ends, cancels and deadlines, RACES=2000, STORE=sqlite or postgres; print the tally
	$(BIN)/python tools/races.py $(RACES) $(STORE)

SIMULATED = $(if $(filter command line environment,$(origin SEEDS)),$(SEEDS),20000)
FIRST ?= 0
simulate: $(READY)  ## simulate workers, clients and faults, SEEDS=20000 from FIRST=0; RECORD=file for long ones; BUGS=1 finds seeded bugs
	$(COMPILE_ALL)
	$(BIN)/python tools/simulate.py $(if $(BUGS),--bugs,$(SIMULATED) $(FIRST) $(if $(RECORD),--record $(RECORD)))

tally: $(READY)  ## write the tally of a campaign of the simulator, RECORD=file, into docs/tally.md
	$(BIN)/python tools/simulate.py --page $(RECORD)

COMPARISONS ?= 500
stores: $(READY)  ## compare all stores under COMPARISONS=500 random sequences of commands
	HOLDFAST_COMPARISONS=$(COMPARISONS) $(BIN)/python -m pytest -q -n 2 tests/store/test_differential.py

CASES ?= 20000
fuzz: $(READY)  ## send requests made from the OpenAPI document, CASES=20000, STORE=sqlite or postgres; print the tally
	$(BIN)/python tools/fuzz.py $(CASES) $(STORE)

SEEDS ?= 200
PLANS = $(if $(filter command line environment,$(origin STORE)),$(STORE),memory)
plans: $(READY)  ## let every commit of random plans fail, SEEDS=200, in memory or STORE; print the tally
	$(BIN)/python tools/crash_plans.py $(SEEDS) $(PLANS)

schedules: $(READY)  ## compare the ticks of twelve zones over ten years with an oracle, and let every commit fail; print the tally
	HOLDFAST_WHOLE_YEARS=1 $(BIN)/python -m pytest -q -rP -n 2 tests/schedules/test_calendar.py -k oracle
	HOLDFAST_WHOLE_YEARS=1 $(BIN)/python -m pytest -q -n 2 tests/crashes/test_schedule_faults.py

DAYS ?= 365
ticks: $(READY)  ## kill eight processes that advance schedules over DAYS=365 of virtual time; print the tally
	$(BIN)/python tools/kill_schedules.py $(DAYS)

scenarios: $(READY)  ## run every scenario of job code, killed at every commit, in memory or STORE; print the tally
	$(BIN)/python tools/run_scenarios.py $(PLANS)

programs: $(READY)  ## run random job programs, cut and killed everywhere, SEEDS=200; print the tally
	$(BIN)/python tools/programs.py $(SEEDS)

SECONDS ?= 60
exact: $(READY)  ## check limits while workers are killed and queues overloaded, SECONDS=60 each; print the tally
	$(BIN)/python bench/gates.py $(SECONDS)

neighbours: $(READY)  ## run four workers on a SQLite file that other programs use, SECONDS=60; print the tally
	$(BIN)/python tools/neighbours.py $(SECONDS)

HOURS ?= $(if $(MINUTES),0,8)
nightly: $(READY)  ## run every torture for HOURS=8 or MINUTES=10, and write the tally to docs/tally.md
	$(BIN)/python tools/nightly.py all --hours $(HOURS) --minutes $(or $(MINUTES),0)

# Each time a folder that comes before the locked versions on the path.
LOWEST = 'uvicorn==0.35.*' 'starlette==0.49.1'
NEWEST = 'uvicorn<1' 'starlette<2'
servers: $(READY)  ## run the tests of the HTTP API with the lowest and with the newest uvicorn and Starlette allowed
	@rm -rf build/lowest build/newest
	$(PIP) --no-deps --upgrade --target build/lowest $(LOWEST)
	$(PIP) --no-deps --upgrade --target build/newest $(NEWEST)
	PYTHONPATH=build/lowest $(BIN)/python -m pytest -q -n auto tests/http
	PYTHONPATH=build/newest $(BIN)/python -m pytest -q -n auto tests/http

bench: $(READY)  ## measure speed and growth, as ratios within one run
	$(BIN)/python bench/machines.py
	$(BIN)/python bench/throughput.py
	$(BIN)/python bench/throughput.py --postgres
	$(BIN)/python bench/drain.py
	$(BIN)/python bench/drain.py --postgres
	$(BIN)/python bench/notify.py
	$(BIN)/python bench/plans.py
	$(BIN)/python bench/children.py
	$(BIN)/python bench/waits.py
	$(BIN)/python bench/growth.py
	$(BIN)/python bench/idle.py --postgres
	$(BIN)/python bench/over_http.py
	$(BIN)/python bench/check.py
	$(BIN)/python bench/http_cost.py
	$(BIN)/python bench/http_cost.py --postgres
	$(BIN)/python bench/streams.py
	$(BIN)/python bench/streams.py --postgres
	$(BIN)/python bench/postgres_growth.py
	$(BIN)/python bench/schedules.py
	$(BIN)/python bench/schedules.py --postgres
	$(BIN)/python bench/retention.py
	$(BIN)/python bench/gates.py
	$(BIN)/python bench/latency.py
	$(BIN)/python bench/latency.py --postgres
	$(BIN)/python bench/disk.py
	$(BIN)/python bench/memory.py
	$(BIN)/python bench/lab.py

profile: $(READY)  ## show where the time of a step and of a tool goes, in microseconds by part
	$(BIN)/python bench/step_profile.py
	$(BIN)/python bench/step_profile.py --tool

PYTHONS ?= $(PYTHON)
pythons: $(READY)  ## measure steps, tools and jobs on each of PYTHONS="python3.11 python3.14", as ratios to the first
	$(BIN)/python bench/pythons.py $(PYTHONS)

compare: $(READY)  ## measure Holdfast beside its peers, and write docs/benchmarks.md; QUICK=1 measures little
	PYTHONPATH="$(CURDIR)/bench" $(BIN)/python -m compare $(if $(QUICK),--quick) $(if $(FLOORS),--floors)

fix: $(CHECKERS)  ## format the code and apply the fixes of the linter
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

docs: $(READY)  ## write the generated pages
	$(BIN)/python tools/write_docs.py
	$(BIN)/python tools/api_contract.py

# The built dashboard is committed, so only people who change web/ need Node. Its bytes are the same on every machine.
PAGE_TOOLS := web/node_modules/.package-lock.json
$(PAGE_TOOLS): web/package-lock.json
	@echo 'Installing the tools of the dashboard …' >&2
	@cd web && npm ci --silent --no-audit --no-fund
	@touch $@

page: $(PAGE_TOOLS)  ## build the dashboard from web/ into the package; needs Node 20 or newer
	cd web && npm run --silent build

pagecheck:  ## check that the committed dashboard is what web/ builds; a notice where there is no Node
	@if command -v node >/dev/null && command -v npm >/dev/null; then $(MAKE) --no-print-directory $(PAGE_TOOLS) && cd web && npm run --silent check; \
	else printf '\n*** NOTICE: no Node here, so the bytes of the dashboard are not compared with web/. ***\n\n' >&2; fi

site: $(SITE)  ## build the documentation as a site with search, in site/; a broken link or a load from another host fails
	$(BIN)/zensical build --strict
	$(BIN)/python tools/check_site.py site

sbom: $(RUNTIME)  ## write the bill of materials of an image, as CycloneDX in build/sbom.json
	@$(BIN)/python tools/sbom.py requirements-deploy.lock build/sbom.json

COMPILE = $(BIN)/uv pip compile pyproject.toml --universal --python-version 3.11 --generate-hashes --upgrade --quiet \
    --no-emit-index-url --no-emit-find-links --no-annotate --custom-compile-command 'make lock'

lock: $(READY)  ## resolve the dependencies again
	$(PIP) 'uv>=0.13,<0.14'
	$(COMPILE) --all-extras --group test --group bench --group build -o requirements.lock
	$(COMPILE) --constraint requirements.lock -o requirements-run.lock
	$(COMPILE) --all-extras --constraint requirements.lock -o requirements-deploy.lock
	$(COMPILE:pyproject.toml=--group pyproject.toml:build) --constraint requirements.lock -o requirements-build.lock
	$(COMPILE) --group check --constraint requirements.lock -o requirements-check.lock
	$(COMPILE) --group site --constraint requirements.lock -o requirements-site.lock

clean:  ## remove all generated files
	rm -rf $(VENV) web/node_modules .coverage* .hypothesis .mypy_cache .pytest_cache .ruff_cache .cache build dist site

$(VENV)/bin/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Holdfast needs Python 3.11 or newer; name one with PYTHON=…")'
	@echo 'Setting up $(VENV) …' >&2
	@$(PYTHON) -m venv --without-pip $(VENV)

# What Holdfast itself needs, without the tools for its tests. requirements.lock has the same pins. The pip of PYTHON
# installs it, because a pip of its own takes longer than all these packages; an older pip cannot.
$(RUNTIME): requirements-run.lock | $(VENV)/bin/python
	@if test -e $(READY); then :; \
	elif $(PYTHON) -m pip --python $(BIN)/python --version >/dev/null 2>&1; \
	then $(PYTHON) -m pip --python $(BIN)/python install $(QUIET) --no-deps --no-compile --require-hashes --requirement $<; \
	else $(OWN_PIP); $(PIP) --no-deps --no-compile --require-hashes --requirement $<; fi
	@touch $@

$(READY): requirements.lock pyproject.toml | $(VENV)/bin/python
	@echo 'Installing the locked packages …' >&2
	@$(BIN)/python -m pip --version >/dev/null 2>&1 || $(OWN_PIP)
	@$(PIP) --require-hashes --requirement requirements.lock
	@$(PIP) --no-deps --no-build-isolation --editable .
	@touch $@

$(CHECKERS): requirements-check.lock $(READY)
	@echo 'Adding the checkers …' >&2
	@$(PIP) --require-hashes --requirement requirements-check.lock
	@touch $@

$(SITE): requirements-site.lock $(READY)
	@echo 'Adding the site builder …' >&2
	@$(PIP) --require-hashes --requirement requirements-site.lock
	@touch $@
