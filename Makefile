# The commands that people type; each installs what the machine lacks first, or names it.
# What runs where: README.md and CONTRIBUTING.md.

DEV := /opt/gresshopper-dev
SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
export STAY ?= 1
export PATH := $(or $(CARGO_HOME),$(HOME)/.cargo)/bin:$(PATH)

.PHONY: demo demo-down demo-test packages packages-test test test-all test-fast e2e browser fidelity notebooks-lost chaos matrix lab bench lint fmt install

## Slurm, JupyterHub and a notebook in a browser, on this machine; STAY=0 takes it down again. A first build takes 8 to 14 minutes.
demo:
	tests/demo/run

## Ends the demo of this machine, wherever it was started.
demo-down:
	tests/demo/run down

## .deb, .rpm and the wheels, in target/packages.
packages: install
	packaging/build

## Packages of a debug build, installed on dev clusters by the code blocks of docs/install.md, upgraded, removed (part of e2e).
packages-test: install
	tests/setup/checks.sh packages

## Ends demos in each way in which they are ended, and looks for what is left (some minutes; not part of test).
demo-test: install
	cargo build --locked --workspace --bins --lib
	PROFILE=debug tests/demo/ends

## The tests of each part and of the whole, as CI runs them.
test: install
	tests/setup/checks.sh rust python browser cluster e2e

## Every test there is, also those marked `thorough`, in each variant.
test-all: export HOP_TESTS = all
test-all: test

## The tests that need no Slurm.
test-fast: install
	tests/setup/checks.sh rust python

## The tests against a real Slurm, in each variant that this machine can run.
e2e: install
	tests/setup/checks.sh cluster e2e

## JupyterHub, JupyterLab and Notebook 7 in a real browser, against a real Slurm (HOP_BROWSER_ALL=1: each test in both).
browser: install
	tests/setup/checks.sh browser

## All notebooks and clients against plain ipykernel, on a real Slurm (docs/conformance.md).
fidelity: install
	tests/setup/checks.sh fidelity

## Notebooks whose kernel loses its node after every third cell, on a real Slurm (an hour and more; NAMES: only those;
## HOP_E2E_REPLICAS=3; RESULTS: a file of verdicts, with which a run that was broken off goes on).
notebooks-lost: install
	cargo build --locked --workspace
	PROFILE=debug $(DEV)/hub/bin/python tests/e2e/lost_notebooks.py $(if $(RESULTS),--json $(RESULTS)) $(NAMES)

## Seeded chaos beside notebooks with three replicas, on a real Slurm (SEED, MINUTES, LANES; half an hour).
chaos: install
	cargo build --locked --workspace
	PROFILE=debug $(DEV)/hub/bin/python tests/e2e/chaos.py --seed $(or $(SEED),1) --minutes $(or $(MINUTES),30) --lanes $(or $(LANES),1)

## Each part of a kernel with three replicas lost at each moment, on a real Slurm (WHAT=seat or node: one half; half an hour).
matrix: install
	cargo build --locked --workspace
	PROFILE=debug HOP_E2E_MATRIX=$(or $(WHAT),all) $(DEV)/hub/bin/python -m pytest -q --timeout 300 tests/e2e/test_matrix.py

## Builds the Lab extension into jupyterhub-spawner/labextension, from where the wheel takes it.
lab: install
	tests/setup/checks.sh lab

## Runs the benchmarks; appends to bench/results.jsonl and writes bench/RESULTS.md.
bench: install
	bench/run

## What CI asks first.
lint: install
	tests/setup/checks.sh lint

fmt: install
	cargo fmt --all
	$(DEV)/hub/bin/ruff format .
	$(DEV)/lab/node_modules/.bin/biome check --write .

install:
	@tests/setup/install.sh
