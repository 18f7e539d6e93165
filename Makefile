# The two commands are `make train` and `make test`; both set up everything they need first.
.PHONY: setup train test lint unit desktop e2e osworld

PY := .venv/bin/python

setup:
	@.setup/install.sh

train: setup  ## train a small vision-language agent on real browser tasks and write a report
	@recipes/quickstart/run.sh

test: lint unit desktop e2e  ## everything that must hold: lint, types, unit tests, desktops, a real training run

lint: setup
	$(PY) -m ruff check .
	$(PY) -m mypy

unit: setup
	$(PY) -m pytest -m "not e2e and not desktop and not osworld"

desktop: setup
	$(PY) -m pytest -m desktop

e2e: setup
	$(PY) -m pytest -m e2e

osworld: setup  ## the contract with OSWorld's unmodified client; installs it into a cache (1.5 GB), so no part of test
	$(PY) -m pytest -m osworld
