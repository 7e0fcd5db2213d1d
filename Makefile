# Every path here is relative, so that the checkout may stand in a folder whose name has spaces.

.DEFAULT_GOAL := help
.NOTPARALLEL:
.PHONY: help run demo test check lint types imports fuzz soak audit bench bench-quick docs screenshots runtimes setup setup-test lock sbom clean

# The caller's Python settings are not the project's.
unexport PYTHONPATH PYTHONHOME PYTHONSAFEPATH PYTHONSTARTUP

PYTHON_HERE := .venv/bin/python

help: ## list these targets
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/\1|\2/p' Makefile | while IFS='|' read -r name what; do printf '  make %-11s %s\n' "$$name" "$$what"; done

run: setup ## set up, write .env where there is none, start everything; Ctrl-C stops it; EXTRAS=1 as for setup
	@[ -e .env ] || bin/riskrelay init
	@exec bin/riskrelay run

demo: setup ## the whole story on a throw-away instance: scan, approve, deliver, verify
	@exec bin/riskrelay demo

test: setup-test ## run every test; ARGS="-k name" goes to pytest
	@exec $(PYTHON_HERE) -m pytest -n 3 --dist loadfile --no-loadscope-reorder $(ARGS)

check: lint types imports test ## lint, types, imports and the tests

lint: setup-test ## style and the usual traps
	@$(PYTHON_HERE) -m ruff check .

types: setup-test ## mypy, strict
	@$(PYTHON_HERE) -m mypy

imports: setup-test ## which room may import which
	@.venv/bin/lint-imports

fuzz: setup-test ## the attacks of the tests with random inputs, for as long as it takes; ARGS="-k http" for a part of them
	@exec $(PYTHON_HERE) -m pytest tests/fuzz --hypothesis-profile=long --timeout=0 $(ARGS)

soak: setup-test ## kill everything at random under load and look for what was lost; ARGS="--hours 2" for longer
	@exec $(PYTHON_HERE) -m soak $(ARGS)

audit: ## look for known holes in what the lock files pin
	@bin/audit

bench: setup-test ## measure this machine, under half an hour; ARGS="--only requests" for a part of it
	@exec $(PYTHON_HERE) -m bench $(ARGS)

bench-quick: setup-test ## the same in under three minutes: fewer rounds, and not everything
	@exec $(PYTHON_HERE) -m bench --quick $(ARGS)

docs: setup-test ## write the reference and the Postman collection anew from the code, and the documents as a site into build/site
	@$(PYTHON_HERE) -m bin.reference
	@NO_MKDOCS_2_WARNING=1 $(PYTHON_HERE) -m mkdocs build --strict

screenshots: setup-test ## retake the screenshots of the console in docs/console; needs Chromium (see runtimes)
	@$(PYTHON_HERE) -m tests.docs.screenshots

runtimes: ## install the browser and the languages that tests of examples and pages drive, with Debian's packages; as root
	@bin/runtimes

setup: ## make .venv with everything pinned; quick when it is done; EXTRAS=1 adds what Sentry and OpenTelemetry need
	@bin/setup $(if $(EXTRAS),--extras)

setup-test:
	@bin/setup --test

lock: ## update the lock files from setup.cfg
	@bin/lock

sbom: setup ## write the software bill of materials (CycloneDX) to build/sbom.cdx.json
	@$(PYTHON_HERE) -m bin.sbom

clean: ## remove .venv and caches; data and .env stay
	@rm -rf .venv .venv-peers .setup.log .mypy_cache .ruff_cache .pytest_cache .import_linter_cache .hypothesis build ./*.egg-info
	@find . -name __pycache__ -type d -prune -exec rm -rf {} +
	@echo "Removed .venv and caches."
	@[ ! -e .env ] || echo "Kept the settings and keys: $$(pwd)/.env"
	@[ ! -e data ] || echo "Kept the data: $$(pwd)/data (or where DATA_DIR points)"
