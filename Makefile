# Two commands do everything: `make demo` and `make test`. Both install what is missing and may be run again at any time.
SHELL := /bin/bash
.ONESHELL:
.SHELLFLAGS := -euo pipefail -c
.DELETE_ON_ERROR:

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
SUDO := $(shell [ "$$(id -u)" = 0 ] || echo sudo)

# What the local cloud needs from Debian: containers, their network, and the maker of the base image.
DEBIAN_PACKAGES := podman runc conmon netavark aardvark-dns iptables nftables mmdebstrap debian-archive-keyring \
  openssh-client iproute2 python3-venv ca-certificates
# What tests need beside that: a kernel with device-mapper, in a process.
TEST_PACKAGES := user-mode-linux

# Python stores what it has compiled, whatever the environment says: each test process and each program that tests start
# would compile the whole tree again.
unexport PYTHONDONTWRITEBYTECODE

# The tests of `make check`: no container, no daemon, nothing that takes seconds.
FAST := not slow and not containers and not slurm and not e2e

CHECKOV_VERSION := 3.3.30
CHECKOV := $(VENV)/checkov

.PHONY: help
help: ## show this
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):[^#]*## /\1|/' | column -t -s'|'

.PHONY: demo
demo: system-packages $(VENV)/run.stamp ## build the demo cluster on this machine and say how to use it
	$(BIN)/python -m gpucluster --file inventories/local/cluster.yml apply

.PHONY: destroy
destroy: $(VENV)/run.stamp ## take the demo cluster away again
	$(BIN)/python -m gpucluster --file inventories/local/cluster.yml destroy --yes

.PHONY: check
check: $(VENV)/dev.stamp ## the loop of every minute: style, types, walls, words, and the fast tests
	$(MAKE) --no-print-directory --jobs=2 --output-sync=target check-style check-tests

.PHONY: check-style
check-style: check-types
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	PATH="$$PWD/$(BIN):$$PATH" $(BIN)/lint-imports --no-logo
# Hosts run the agent with Python 3.9 and later, and modules with what ansible-core supports there, 3.8 and later.
	$(BIN)/vermin --quiet --target=3.9- --no-tips --violations gpucluster/agent
	$(BIN)/vermin --quiet --target=3.8- --no-tips --violations ansible/library ansible/module_utils
	$(BIN)/yamllint --strict .

.PHONY: check-types
check-types:
	$(BIN)/mypy

.PHONY: check-tests
check-tests:
	$(BIN)/python -m pytest -n 2 --dist loadfile --durations=3 -m "$(FAST)"

.PHONY: test
test: system-packages test-packages lint ## run every check and every test, the end-to-end test included
# Three at a time: tests of daemons, of Terraform and of machines that boot mostly wait. Real Slurm and whole clusters come
# after the others: they wait by the second, and a machine with other work makes them late. Each worker imports all files
# that it is given, so the later two get theirs only.
	$(BIN)/python -m pytest -n 3 --dist loadfile -m "not slurm and not e2e"
	$(BIN)/python -m pytest -n 3 --dist loadfile -m slurm $$(grep -rl --include='test_*.py' 'pytest\.mark\.slurm' tests)
	$(BIN)/python -m pytest -n 3 --dist loadfile tests/e2e

.PHONY: lint
lint: $(VENV)/dev.stamp ## every check that needs no machine: those of `check`, Ansible, Terraform
	$(MAKE) --no-print-directory --jobs=2 --output-sync=target check-ansible check-terraform check-style

.PHONY: check-ansible
check-ansible:
	cd ansible && PATH="$(CURDIR)/$(BIN):$$PATH" $(CURDIR)/$(BIN)/ansible-lint --offline --strict

.PHONY: check-terraform
check-terraform: $(CHECKOV)/$(CHECKOV_VERSION).stamp
	$(CHECKOV)/bin/checkov --quiet --compact --skip-download --config-file terraform/.checkov.yml --directory terraform

.PHONY: unit
unit: $(VENV)/dev.stamp ## run the tests that start no container
	$(BIN)/python -m pytest -m "not containers and not slurm and not e2e"

.PHONY: test-build
test-build: system-packages $(VENV)/dev.stamp ## build Slurm from its source and upgrade a cluster to it: minutes without a cache
	GPUCLUSTER_TEST_BUILD=1 $(BIN)/python -m pytest -n 0 tests/ansible/test_slurm_build.py tests/e2e/test_slurm_upgrade.py

.PHONY: bench
bench: system-packages $(VENV)/dev.stamp ## measure: medians and ratios
	$(BIN)/python benchmarks/run.py

# Installs those of the Debian packages $(1) that are missing.
define install_packages
@missing=()
for package in $(1); do
  dpkg-query -W -f '$${db:Status-Status}' "$$package" 2>/dev/null | grep -qx installed || missing+=("$$package")
done
if [ $${#missing[@]} -gt 0 ]; then
  echo "installing Debian packages: $${missing[*]}"
  $(SUDO) apt-get update -qq
  DEBIAN_FRONTEND=noninteractive $(SUDO) apt-get install -y -qq --no-install-recommends "$${missing[@]}"
fi
endef

.PHONY: system-packages
system-packages: ## install the Debian packages that are missing
	$(call install_packages,$(DEBIAN_PACKAGES))

.PHONY: test-packages
test-packages: system-packages ## install what the tests need beside them
	$(call install_packages,$(TEST_PACKAGES))

# The virtual environment, once for using it and once more for working on it.
$(VENV)/run.stamp: pyproject.toml constraints.txt | system-packages
	[ -x $(BIN)/python ] || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable '.[local]'
	touch $@

$(VENV)/dev.stamp: pyproject.toml constraints.txt | system-packages
	[ -x $(BIN)/python ] || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable '.[dev]'
	touch $@ $(VENV)/run.stamp

# The same versions everywhere: constraints.txt, for all Pythons that pyproject.toml allows.
.PHONY: lock
lock: ## write constraints.txt again: the newest versions that pyproject.toml allows
	[ -x $(VENV)/uv/bin/uv ] || { $(PYTHON) -m venv $(VENV)/uv; $(VENV)/uv/bin/python -m pip install --quiet uv; }
	$(VENV)/uv/bin/uv pip compile --quiet --universal --upgrade --python-version 3.11 --extra dev --no-annotate \
	  --no-emit-index-url --no-emit-find-links --custom-compile-command 'make lock' --output-file constraints.txt pyproject.toml

.PHONY: test-newest
test-newest: system-packages ## run the tests that start no container with the newest versions that pyproject.toml allows
	rm -rf $(VENV)/newest
	$(PYTHON) -m venv $(VENV)/newest
	$(VENV)/newest/bin/python -m pip install --quiet --disable-pip-version-check --upgrade --editable '.[dev]'
	$(VENV)/newest/bin/python -m pip freeze --exclude-editable
	PATH="$(CURDIR)/$(VENV)/newest/bin:$$PATH" $(VENV)/newest/bin/python -m pytest -m "not containers and not slurm and not e2e"

# It pins many versions of packages that we use, too, so it has an environment of its own.
$(CHECKOV)/$(CHECKOV_VERSION).stamp:
	$(PYTHON) -m venv $(CHECKOV)
	$(CHECKOV)/bin/python -m pip install --quiet --disable-pip-version-check checkov==$(CHECKOV_VERSION)
	touch $@
