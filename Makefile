# Two commands do everything: `make demo` and `make test`. Both install what is missing and may be run again at any time.
SHELL := /bin/bash
.ONESHELL:
.SHELLFLAGS := -euo pipefail -c
.DELETE_ON_ERROR:

# The distribution's Python where it is new enough: one of another origin, such as pyenv's, is often built without optimizations,
# and each command then takes 1.2 times as long (measured).
ifndef PYTHON
PYTHON := $(shell for each in /usr/bin/python3 python3; do \
  "$$each" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2> /dev/null && echo "$$each" && exit; done; echo python3)
endif
AUDIT_SERVICE ?= pypi
VENV := .venv
BIN := $(VENV)/bin
SUDO := $(shell [ "$$(id -u)" = 0 ] || echo sudo)

# What the local cloud needs from Debian: containers, their network, and the maker of the base image.
DEBIAN_PACKAGES := podman runc conmon netavark iptables nftables mmdebstrap debian-archive-keyring \
  openssh-client iproute2 python3-venv ca-certificates
# What tests need beside that: an emulator, for a kernel with device-mapper; and Prometheus, for its rules and exporters.
TEST_PACKAGES := qemu-system-x86 prometheus prometheus-node-exporter
# What `make stress` needs beside those.
STRESS_PACKAGES := gcc libc6-dev

# Python stores what it has compiled, whatever is in the environment: each test process and each program that tests start
# would compile the whole tree again.
unexport PYTHONDONTWRITEBYTECODE

# The tests of `make check`: no container, no daemon, nothing that takes seconds.
FAST := not slow and not containers and not slurm and not e2e

.PHONY: help
help: ## show this
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):[^#]*## /\1|/' | column -t -s'|'

.PHONY: demo
demo: system-packages $(VENV)/run.stamp ## build the demo cluster on this machine and print how to use it
	$(BIN)/python -m gpucluster --file inventories/local/cluster.yml apply

.PHONY: destroy
destroy: $(VENV)/run.stamp ## take the demo cluster away again
	$(BIN)/python -m gpucluster --file inventories/local/cluster.yml destroy --yes

# CHANGED=1: the fast tests that reach what differs from the main branch; CHANGED=COMMIT: from a commit.
.PHONY: check
check: $(VENV)/dev.stamp ## style, types, walls, words, and the fast tests; CHANGED=1: the loop of every minute
	$(MAKE) --no-print-directory --jobs=2 --output-sync=target check-style check-tests

.PHONY: check-style
check-style: check-types
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	PATH="$$PWD/$(BIN):$$PATH" $(BIN)/lint-imports --no-logo
# Hosts run the agent with Python 3.9 and later, and modules with what ansible-core supports there, 3.8 and later.
	$(BIN)/vermin --quiet --target=3.9- --no-tips --violations gpucluster/controller gpucluster/node_agent
	$(BIN)/vermin --quiet --target=3.8- --no-tips --violations ansible/library ansible/module_utils \
	    ansible/action_plugins ansible/lookup_plugins
# Jobs run with what other sites have: Grid Engine is at home on systems with Python 3.6 and bash 4.2.
	$(BIN)/vermin --quiet --target=3.6- --no-tips --violations $(wildcard gpucluster/jobs/templates/*/files)
	$(BIN)/yamllint --strict .

.PHONY: check-types
check-types:
	$(BIN)/mypy

.PHONY: check-tests
check-tests:
	$(own_folder)
	$(BIN)/python -m pytest --basetemp="$$folder/t" -n 2 --dist loadgroup --durations=3 --hypothesis-profile=check -m "$(FAST)" \
	  $(if $(CHANGED),$$($(BIN)/python -m tools.affected $(filter-out 1,$(CHANGED))))

# FILES="tests/spec tests/cli/test_cli.py": these tests only. CHANGED=1: those that reach what differs from the main branch;
# CHANGED=COMMIT: from a commit. ORDER=SEED: in another order.
.PHONY: test
test: test-machine ## run every check and the tests, whole clusters included, without those that take longest; FILES=... or CHANGED=1: some of them
	$(BIN)/python -m tools.suite $(if $(FILES),--files $(FILES)) \
	  $(if $(CHANGED),--changed $(filter-out 1,$(CHANGED))) $(if $(ORDER),--order $(ORDER))

.PHONY: test-all
test-all: test-machine ## the same with every test, as before a release: an hour
	$(BIN)/python -m tools.suite --all $(if $(ORDER),--order $(ORDER))

.PHONY: stress
stress: test-machine ## those of make test (ALL=1: every test) with busy processors, a slow disk, little memory, and a clock that jumps once
	$(call install_packages,$(STRESS_PACKAGES))
	$(BIN)/python -m tools.stress $(BIN)/python -m tools.suite $(if $(ALL),--all) $(if $(FILES),--files $(FILES)) $(if $(ORDER),--order $(ORDER))

# ROUNDS=50 SEED=word RUNNING=120 WAITING=1000: how often, which rounds at which moments, and how many jobs run and wait.
.PHONY: chaos
chaos: test-machine ## lose the controller of a cluster at random moments, replace it, and look for what is lost: a minute or more a round
	GPUCLUSTER_TEST_CHAOS=$(or $(ROUNDS),50) GPUCLUSTER_TEST_CHAOS_SEED=$(or $(SEED),1) \
	  GPUCLUSTER_TEST_CHAOS_JOBS=$(or $(RUNNING),120),$(or $(WAITING),1000) $(BIN)/python -m pytest -n 0 -s tests/chaos

# Installs what the tests need, and names what this machine lacks, before a test starts.
.PHONY: test-machine
test-machine:
	@command -v $(PYTHON) > /dev/null || { echo "make test needs: $(PYTHON): apt install python3" >&2; exit 1; }
	$(PYTHON) tools/machine.py first
	$(MAKE) --no-print-directory test-packages $(VENV)/dev.stamp $(VENV)/checkov/stamp $(VENV)/docs/stamp
	$(BIN)/python -m tools.machine

.PHONY: lint
lint: $(VENV)/dev.stamp ## every check that needs no machine: those of `check`, Ansible, Terraform
	$(MAKE) --no-print-directory --jobs=2 --output-sync=target check-ansible check-terraform check-collection docs check-style

.PHONY: check-ansible
check-ansible:
	cd ansible && PATH="$(CURDIR)/$(BIN):$$PATH" $(CURDIR)/$(BIN)/ansible-lint --offline --strict

# Finds files that can't be imported, and compiles the tests once: each process of pytest would do so by itself.
.PHONY: check-collection
check-collection:
	$(BIN)/python -m pytest -n 0 --collect-only --quiet --quiet > /dev/null || $(BIN)/python -m pytest -n 0 --collect-only --quiet

.PHONY: check-terraform
check-terraform: $(VENV)/checkov/stamp
	$(VENV)/checkov/bin/checkov --quiet --compact --skip-download --config-file terraform/.checkov.yml --directory terraform

# A link that leads nowhere and a page that no list has are errors. Search works in a browser that opens the files, too.
.PHONY: docs
docs: $(VENV)/docs/stamp ## build the documentation site, dist/docs/index.html
	$(VENV)/docs/bin/sphinx-build --quiet --fail-on-warning --keep-going --nitpicky --jobs=2 -d dist/docs-cache -c docs . dist/docs

.PHONY: unit
unit: $(VENV)/dev.stamp ## run the tests that start no container
	$(BIN)/python -m pytest -m "not containers and not slurm and not e2e"

.PHONY: test-build
test-build: system-packages $(VENV)/dev.stamp ## build Slurm from its source and upgrade a cluster to it: minutes without a cache
	$(own_folder)
	GPUCLUSTER_TEST_BUILD=1 $(BIN)/python -m pytest --basetemp="$$folder/t" -n 0 tests/ansible/test_slurm_build.py \
	    tests/e2e/test_slurm_upgrade.py tests/e2e/test_slurm_systems.py

# It installs nothing beside Python packages: the driver, Slurm and MPI are those of the machine. -rs names what is missing.
.PHONY: test-gpu
test-gpu: $(VENV)/dev.stamp ## test Slurm, containers and checks with the real GPUs of this machine: ten minutes with two of them
	GPUCLUSTER_TEST_GPU=1 $(BIN)/python -m pytest -n 0 -rs tests/gpu

# -rs names what was not run.
.PHONY: test-programs
test-programs: system-packages $(VENV)/dev.stamp ## run Snakemake, Ray, MPI and other programs of PyPI on a cluster of the local cloud: ten minutes
	$(own_folder)
	GPUCLUSTER_TEST_PROGRAMS=1 $(BIN)/python -m pytest --basetemp="$$folder/t" -n 0 -rs tests/programs tests/e2e/test_programs.py

# CHANGES=300 SEED=word: how many, and which.
.PHONY: test-changes
test-changes: system-packages $(VENV)/dev.stamp ## change three cluster files at random, plan and apply, and hold what happened against the plan: twenty minutes
	$(own_folder)
	GPUCLUSTER_TEST_CHANGES=$(or $(CHANGES),300) GPUCLUSTER_TEST_CHANGES_SEED=$(or $(SEED),1) \
	  $(BIN)/python -m pytest --basetemp="$$folder/t" -n 0 -s tests/terraform/test_random_changes.py

# BASE is an image of Debian 13 or newer; OPTIONS are those of `podman build` that reach the package indexes, such as --network host.
.PHONY: test-image
test-image: $(VENV)/dev.stamp ## build the image of the Containerfile from BASE=IMAGE, and run gpucluster in it: some minutes
	GPUCLUSTER_TEST_IMAGE_BASE="$(or $(BASE),docker.io/library/debian:13-slim)" GPUCLUSTER_TEST_IMAGE_OPTIONS="$(OPTIONS)" \
	  $(BIN)/python -m pytest -n 0 -rs tests/packaging/test_image.py

# The image needs podman and the package indexes: BASE and OPTIONS are as for test-image.
.PHONY: release
release: release-wheel ## build what a release consists of, from the commit: source, wheel, image, checksums in dist/release
	$(BIN)/python -m tools.release_build image dist/release $(if $(BASE),--base "$(BASE)") $(if $(OPTIONS),--options="$(OPTIONS)")

.PHONY: release-wheel
release-wheel: $(VENV)/dev.stamp ## build source and wheel of the commit twice, compare them, and try the wheel with the locked packages
	$(BIN)/python -m tools.release_build wheel dist/release

# To build Kubernetes, and to make images of it. Debian 13 has no Go that is old enough for its source.
KUBERNETES_PACKAGES := conntrack dpkg-dev etcd-client etcd-server gcc golang-1.19-go \
    golang-github-modern-go-reflect2-dev iptables

# Three parts, each a process of its own: two whole clusters at a time are too much for two processors, and the cluster that
# files share lives as long as its process. A part that fails fails the target, and the others run.
.PHONY: test-kubernetes
test-kubernetes: system-packages $(VENV)/dev.stamp ## test a real Kubernetes, which is built from Debian's source first: an hour
	$(call install_packages,$(KUBERNETES_PACKAGES))
	$(BIN)/python -m tests.kubernetes_sources
	export GPUCLUSTER_TEST_KUBERNETES=1
	$(own_folder)
	failed=0 summary=
	part() {
	  local name=$$1 began=$$SECONDS result=passed
	  shift
	  $(BIN)/python -m pytest --basetemp="$$folder/t" -rs "$$@" || { result=FAILED; failed=1; }
	  summary+=$$(printf '%-7s %4d s  %s' "$$result" "$$((SECONDS - began))" "$$name")$$'\n'
	}
	part "an API server as a process" -n 2 --dist loadgroup $$(grep -rl needs_api_server --include='test_*.py' tests)
	part "a cluster that tests share" -n 0 $$(grep -L need_kubernetes tests/e2e/test_kubernetes*.py)
	part "clusters of their own" -n 0 $$(grep -l need_kubernetes tests/e2e/test_kubernetes*.py)
	printf 'make test-kubernetes:\n%s' "$$summary"
	exit $$failed

.PHONY: bench
bench: system-packages $(VENV)/dev.stamp ## measure: medians and ratios
	$(BIN)/python benchmarks/run.py

# A folder for the temporary files of a run, as the suite has one. In pytest's own, which all runs of a user share, each run
# that begins closes the folder to other users, and with it the homes of users of a test that runs meanwhile.
define own_folder
folder=$$(mktemp --directory --tmpdir gct-XXXXXX)
trap 'rm -rf "$$folder"' EXIT
chmod 711 "$$folder"
mkdir --mode=700 "$$folder/run"
export TMPDIR="$$folder" XDG_RUNTIME_DIR="$$folder/run"
endef

# Installs those of the Debian packages $(1) that are missing.
define install_packages
@missing=()
for package in $(1); do
  dpkg-query -W -f '$${db:Status-Status}' "$$package" 2>/dev/null | grep -qx installed || missing+=("$$package")
done
if [ $${#missing[@]} -gt 0 ]; then
  echo "installing Debian packages: $${missing[*]}"
  mkdir -p $(VENV)
  $(call logged,$(VENV)/packages.log,$(SUDO) apt-get update -qq)
  $(call logged,$(VENV)/packages.log,$(SUDO) env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "$${missing[@]}")
fi
endef

.PHONY: system-packages
system-packages: ## install the Debian packages that are missing
	$(call install_packages,$(DEBIAN_PACKAGES))

.PHONY: test-packages
test-packages: system-packages ## install what the tests need beside them
	$(call install_packages,$(TEST_PACKAGES))

# They have no wheel.
SOURCE_ONLY := python-terraform

# Installs the sections $(2) of requirements.lock into the virtual environment $(1): nothing whose hash is not in it. What has
# no wheel is built with the locked setuptools, which therefore comes first.
define install_locked
[ -x $(1)/bin/python ] || $(PYTHON) -m venv $(1)
$(1)/bin/python tools/lock.py show $(2) > $(1)/requirements.txt
echo "installing Python packages into $(1): $(2)"
$(call logged,$(1)/install.log,$(1)/bin/python -m pip install --disable-pip-version-check --require-hashes --no-deps \
  --no-build-isolation --only-binary=:all: --no-binary=$(SOURCE_ONLY) --requirement $(1)/requirements.txt)
endef

# Runs the command $(2), whose output goes into the file $(1): pip prints a line for each package, and several for each folder
# that its configuration on this machine names and that does not exist. After a failure all of it is shown.
define logged
$(2) > $(1) 2>&1 || { cat $(1) >&2; exit 1; }
endef

# The package itself, with the locked hatchling.
define install_editable
$(call logged,$(VENV)/install.log,$(BIN)/python -m pip install --disable-pip-version-check --no-index --no-deps \
  --no-build-isolation --editable .)
endef

# The virtual environment, once for using it and once more for working on it.
$(VENV)/run.stamp: pyproject.toml requirements.lock | system-packages
	@$(call install_locked,$(VENV),controller build)
	$(call install_locked,$(VENV),run)
	$(call install_editable)
	touch $@

$(VENV)/dev.stamp: pyproject.toml requirements.lock | system-packages
	@$(call install_locked,$(VENV),controller build)
	$(call install_locked,$(VENV),run dev)
	$(call install_editable)
	touch $@ $(VENV)/run.stamp

# They pin many versions of packages that we use, too, so they have environments of their own.
$(VENV)/checkov/stamp: requirements.lock
	@$(call install_locked,$(VENV)/checkov,checkov)
	touch $@

$(VENV)/docs/stamp: requirements.lock
	@$(call install_locked,$(VENV)/docs,docs)
	touch $@

$(VENV)/audit/stamp: requirements.lock
	@$(call install_locked,$(VENV)/audit,audit)
	touch $@

# The same versions and files everywhere, for all Pythons that pyproject.toml allows.
.PHONY: lock
lock: $(VENV)/dev.stamp $(VENV)/audit/stamp ## write requirements.lock again: the newest versions that pyproject.toml allows
	PYTHONPATH=. $(BIN)/python tools/lock.py write $(VENV)/audit/bin/uv

.PHONY: sbom
sbom: $(VENV)/audit/stamp ## write dist/gpucluster.cdx.json: what `make demo` and a controller install, as CycloneDX
	mkdir -p dist
	$(PYTHON) tools/lock.py show controller build run > dist/requirements.txt
	$(VENV)/audit/bin/cyclonedx-py requirements --output-reproducible --pyproject pyproject.toml --of JSON \
	  --output-file dist/gpucluster.cdx.json dist/requirements.txt

# Asks the package index for known vulnerabilities. A package that it can't ask for is a failure, not a pass: a mirror
# often has the files only, without what is known of them.
.PHONY: audit
audit: $(VENV)/audit/stamp ## look for known vulnerabilities of every package of requirements.lock; needs pypi.org, or AUDIT_SERVICE=osv
	mkdir -p dist
	failed=
	for sections in 'controller build run dev' checkov audit docs; do
	  $(PYTHON) tools/lock.py show $$sections > dist/requirements.txt
	  $(VENV)/audit/bin/pip-audit --strict --require-hashes --disable-pip --progress-spinner=off \
	    --vulnerability-service=$(AUDIT_SERVICE) --requirement dist/requirements.txt || failed="$$failed $$sections"
	done
	[ -z "$$failed" ] || { echo "not all was asked for, or something is vulnerable:$$failed" >&2; exit 1; }

.PHONY: test-newest
test-newest: system-packages ## run the tests that start no container with the newest versions that pyproject.toml allows
	rm -rf $(VENV)/newest
	$(PYTHON) -m venv $(VENV)/newest
	$(VENV)/newest/bin/python -m pip install --quiet --disable-pip-version-check --upgrade --editable '.[dev]'
	$(VENV)/newest/bin/python -m pip freeze --exclude-editable
	$(VENV)/newest/bin/python -m pytest -m "not containers and not slurm and not e2e"
