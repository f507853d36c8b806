# The tasks of this project. Each is a script in hack/ that makes its own preparations.
.DEFAULT_GOAL := help
.PHONY: help setup demo test test-all unit e2e check format generate docs lock image chart bench bench-fleet bench-pods mutants hardware neighbours clean

help: ## show this list
	@awk -F':.*## ' '/^[a-z0-9-]+:.*## / {printf "  make %-11s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

setup: ## make .venv from requirements.lock
	@hack/setup

demo: setup ## see it work: DEMO=NAME|all picks demos, PROFILE=a100x8 the GPUs, KUBERNETES=1.36 the version, RUNTIME=crio the container runtime, INSTALL=chart installs it, KEEP=1 leaves it running, NAME=two runs beside another
	@.venv/bin/python hack/demo $(if $(DEMO),--demo $(DEMO)) $(if $(PROFILE),--profile $(PROFILE)) $(if $(KUBERNETES),--kubernetes $(KUBERNETES)) $(if $(RUNTIME),--runtime $(RUNTIME)) $(if $(INSTALL),--install $(INSTALL)) $(if $(KEEP),--keep) $(if $(filter command,$(origin NAME)),--name $(NAME))

test: setup ## run the tests that a change needs; end-to-end tests need root; ONLY=WORD runs those with the word in their path or name
	@hack/test all

test-all: setup ## run all tests, the long ones too
	@LONG=1 hack/test all

unit: setup ## run the tests that need no cluster
	@hack/test unit

e2e: setup ## run the end-to-end tests on a real local cluster
	@hack/test e2e

check: setup ## linters, types, import contracts, lengths, English, generated code, links of the docs
	@hack/check

format: setup ## format the code and mend what the linter can
	@.venv/bin/ruff format && .venv/bin/ruff check --fix-only

generate: setup ## write generated code
	@hack/generate

docs: setup ## build the documentation as a site, in build/site
	@hack/site/build

lock: setup ## write requirements.lock and the image's locks from pyproject.toml
	@hack/lock

image: setup ## build the driver's image without a registry, as root; print where the archive is
	@.venv/bin/python hack/image $(ARGS)

chart: setup ## pack the chart into dist, as a release does: IMAGE=REGISTRY/dra-driver names the image
	@IMAGE="$(IMAGE)" PAGES="$(PAGES)" HELM="$(HELM)" hack/pack

bench: setup ## measure prepare and unprepare; ARGS are passed on
	@.venv/bin/python hack/bench/prepare $(ARGS)

bench-fleet: setup ## measure what slices cost a cluster of many nodes; ARGS are passed on
	@.venv/bin/python hack/bench/fleet $(ARGS)

bench-pods: setup ## measure how long pods take to start, with claims and without; ARGS are passed on
	@.venv/bin/python hack/bench/pods $(ARGS)

mutants: setup ## put small faults into the code that must not break, and list those that no test notices; takes a night; ARGS="dra_driver.cdi.*" picks some
	@.venv/bin/mutmut run $(ARGS) && { .venv/bin/mutmut results | grep ': survived' || echo "no fault survived"; }

hardware: setup ## try the driver on this machine's GPU and leave it as it was: ALLOW=time-slice,… names what may be changed, PLAN=1 only says it, RESTORE=1 takes a killed run back
	@[ -n "$(PLAN)$(RESTORE)" ] || [ "$$(id -u)" != 0 ] || .venv/bin/python hack/ready.py cdi >/dev/null
	@.venv/bin/python -m pytest -m gpu --timeout 900 -p no:randomly $(if $(PLAN),--collect-only) tests/hardware $(ARGS)

neighbours: setup ## run what stands beside us in a cluster for real, as root: Kueue, Cluster Autoscaler, Karpenter
	@TESTS_WITHOUT="$$(.venv/bin/python hack/ready.py --for tests/neighbours)" .venv/bin/python -m pytest -q -p no:randomly --timeout 900 -m neighbours tests/neighbours

clean: ## remove what the other tasks made in this folder
	@rm -rf .venv .venv-* build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache mutants
