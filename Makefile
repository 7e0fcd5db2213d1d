# All paths are relative, so that the checkout may be in a folder whose name contains spaces.

.DEFAULT_GOAL := help
.NOTPARALLEL:
.PHONY: help run demo test check lint types imports fuzz soak audit bench bench-quick docs client screenshots runtimes image setup setup-test lock sbom clean

# The caller's Python settings must not affect the project.
unexport PYTHONPATH PYTHONHOME PYTHONSAFEPATH PYTHONSTARTUP PYTHONDONTWRITEBYTECODE

PYTHON_HERE := .venv/bin/python
# A test spends half of its time waiting for the servers and processes that it started.
TEST_PROCESSES = $(shell echo $$(($$(getconf _NPROCESSORS_ONLN) * 5 / 2)))

help: ## list the targets
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/\1|\2/p' Makefile | while IFS='|' read -r name what; do printf '  make %-11s %s\n' "$$name" "$$what"; done

run: setup ## set up, create .env if missing, start everything; Ctrl-C stops; EXTRAS=1 as for setup
	@[ -e "$${RISKRELAY_ENV_FILE:-.env}" ] || bin/riskrelay init
	@exec bin/riskrelay run

demo: setup ## run the whole workflow on a temporary installation: scan, approve, deliver to a webhook and a simulated GitHub
	@exec bin/riskrelay demo

test: setup-test ## run all tests; ARGS="-k name" is passed to pytest
	@exec $(PYTHON_HERE) -m pytest -n $(TEST_PROCESSES) --dist loadfile --no-loadscope-reorder $(ARGS)

check: lint types imports test ## run lint, types, imports and test

lint: setup-test ## check style and common errors (ruff)
	@$(PYTHON_HERE) -m ruff check .

types: setup-test ## check types (mypy, strict)
	@$(PYTHON_HERE) -m mypy

imports: setup-test ## check the import rules (import-linter)
	@.venv/bin/lint-imports

fuzz: setup-test ## run the fuzz tests with many random inputs, without a time limit; ARGS="-k http" selects tests
	@exec $(PYTHON_HERE) -m pytest tests/fuzz -n 2 --dist load --hypothesis-profile=long --timeout=0 $(ARGS)

soak: setup-test ## kill processes at random under load and check that nothing is lost; ARGS="--hours 2" for longer
	@exec $(PYTHON_HERE) -m soak $(ARGS)

audit: ## check the locked packages for known vulnerabilities
	@bin/audit

bench: setup-test ## run all benchmarks, under half an hour; ARGS="--only requests" selects a part
	@exec $(PYTHON_HERE) -m bench $(ARGS)

bench-quick: setup-test ## run most benchmarks with fewer repetitions, under three minutes
	@exec $(PYTHON_HERE) -m bench --quick $(ARGS)

docs: setup-test ## generate the reference and the Postman collection from the code, and the documentation site in build/site
	@$(PYTHON_HERE) -m tools.reference
	@NO_MKDOCS_2_WARNING=1 $(PYTHON_HERE) -m mkdocs build --strict

client: setup-test ## build the wheel and the source archive of clients/python in build/client
	@$(PYTHON_HERE) -m build --no-isolation --outdir build/client clients/python

screenshots: setup-test ## retake the screenshots of the console in docs/console; needs Chromium (see runtimes)
	@$(PYTHON_HERE) -m tests.docs.screenshots

runtimes: ## install the browser, the languages and the Redmine that some tests need, as Debian packages; needs root
	@bin/runtimes

image: ## build the container image "riskrelay"; needs podman or docker; ARGS="--build-arg NAME=VALUE"
	@bin/image $(ARGS)

setup: ## create or update .venv from the lock files; EXTRAS=1 adds Sentry and OpenTelemetry
	@bin/setup $(if $(EXTRAS),--extras)

setup-test:
	@bin/setup --test

lock: ## update the lock files from setup.cfg
	@bin/lock

sbom: setup ## write the software bill of materials (CycloneDX) to build/sbom.cdx.json
	@$(PYTHON_HERE) -m tools.sbom

clean: ## remove .venv and caches; keep data and .env
	@rm -rf .venv .venv-peers .setup.log .mypy_cache .ruff_cache .pytest_cache .import_linter_cache .hypothesis build ./*.egg-info clients/python/build clients/python/*.egg-info
	@find . -name __pycache__ -type d -prune -exec rm -rf {} +
	@echo "Removed .venv and caches."
	@[ ! -e .env ] || echo "Kept the settings and keys: $$(pwd)/.env"
	@[ ! -e data ] || echo "Kept the data: $$(pwd)/data (or where DATA_DIR points)"
