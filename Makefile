# The tasks of this project. Each is a script in hack/ that makes its own preparations.
.DEFAULT_GOAL := help
.PHONY: help setup demo test unit e2e check generate docs image package bench chaos mutants hardware clean

help: ## show this list
	@awk -F':.*## ' '/^[a-z0-9-]+:.*## / {printf "  make %-11s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

setup: ## make .venv from requirements.lock
	@hack/setup

demo: setup ## show the driver at work: DEMO=NAME|all picks demos, PROFILE=a100x8 the GPUs, KUBERNETES=1.36 the version, RUNTIME=crio the container runtime, INSTALL=chart installs it by the chart, KEEP=1 leaves it running, NAME=two allows a second demo beside another
	@.venv/bin/python hack/demo $(if $(DEMO),--demo $(DEMO)) $(if $(PROFILE),--profile $(PROFILE)) $(if $(KUBERNETES),--kubernetes $(KUBERNETES)) $(if $(RUNTIME),--runtime $(RUNTIME)) $(if $(INSTALL),--install $(INSTALL)) $(if $(KEEP),--keep) $(if $(filter command,$(origin NAME)),--name $(NAME))

test: setup ## run the tests that a change needs; end-to-end tests need root; ONLY=WORD runs those with the word in their path or name, LONG=1 adds long ones
	@hack/test all

unit: setup ## run the tests that need no cluster
	@hack/test unit

e2e: setup ## run the end-to-end tests on a real local cluster; ONLY=neighbours runs integration tests with the real Kueue, Cluster Autoscaler and Karpenter, ONLY=runtimes those that depend on the container runtime
	@hack/test e2e

check: setup ## run linters and checks of types, import contracts, lengths, English, workflows, generated code and links; FIX=1 first formats the code
	@hack/check

generate: setup ## write generated code
	@hack/generate

docs: setup ## build the documentation as a site, in build/site
	@hack/site/build

image: setup ## build the driver's image without a registry, as root; print where the archive is
	@.venv/bin/python hack/image $(ARGS)

package: setup ## package chart, manifests and wheels into dist, as a release does: IMAGE=REGISTRY/dra-driver names the image; REHEARSE=1, as root, also builds the image and publishes everything to a registry on this machine
	@$(if $(REHEARSE),hack/rehearse,hack/pack)

bench: setup ## measure prepare and unprepare; WHAT=fleet measures what slices cost a cluster, WHAT=pods how fast pods start; ARGS are passed on
	@.venv/bin/python hack/bench/$(or $(WHAT),prepare) $(ARGS)

chaos: setup ## as root, make and delete pods on a cluster while everything around them fails, for ten rounds; ARGS="--minutes 60 --seed 7" for longer
	@.venv/bin/python hack/chaos $(ARGS)

mutants: setup ## run mutation tests on critical packages and list the survivors; takes a night; ARGS="dra_driver.cdi.*" picks modules
	@.venv/bin/mutmut run $(ARGS) && { .venv/bin/mutmut results | grep ': survived' || echo "no mutant survived"; }

hardware: setup ## test the driver on this machine's GPU, and restore its settings: ALLOW=time-slice,… names what may be changed, PLAN=1 only lists the tests, RESTORE=1 undoes a killed run
	@[ -n "$(PLAN)$(RESTORE)" ] || [ "$$(id -u)" != 0 ] || .venv/bin/python hack/ready.py cdi >/dev/null
	@.venv/bin/python -m pytest -m gpu --timeout 900 -p no:randomly $(if $(PLAN),--collect-only) tests/hardware $(ARGS)

clean: ## remove what the other tasks made in this folder
	@rm -rf .venv .venv-* build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache mutants
