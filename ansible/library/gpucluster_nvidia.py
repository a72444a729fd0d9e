#!/usr/bin/python
"""NVIDIA's driver and its services, on hosts that have a GPU.

Instead of plain tasks: which of a dozen packages has to be there at which version depends on the GPU, on the driver
that is loaded and on what repositories have. As conditions of tasks that can be tested in a container only; here the
decision is a pure function (`gpucluster_gpus`).
"""

from __future__ import annotations

import os
import re
import shutil
from pathlib import Path
from typing import Any

from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.gpucluster_gpus import Desired, Hardware, Plan, has_module, plan, summary, survey
from ansible.module_utils.gpucluster_package_files import APT, DNF, Packages, manager

DOCUMENTATION = """
module: gpucluster_nvidia
short_description: The driver of NVIDIA GPUs and its services
description:
  - Detects GPUs on the PCI bus. Without one it changes nothing, and reports that. With one it keeps the driver of the
    image, or installs one with C(driver=install); it replaces a driver only with C(replace).
  - Packages that must match the driver are installed at its version, or the task fails and lists the versions it found.
  - A driver without a module for the running kernel fails the task. A module for RDMA that can't be loaded is only
    reported.
  - Sets the fact C(gpucluster_nvidia).
options:
  driver: {description: Keep the image's driver, or install one., type: str, choices: [keep, install], required: true}
  branch: {description: "Branch of the driver, such as 580.", type: str, required: true}
  replace: {description: Replace an installed driver of another branch., type: bool, default: false}
  dcgm: {description: "Install DCGM, where a repository has it.", type: bool, default: false}
  fabric: {description: The shape needs the fabric manager even if no switch is on the bus., type: bool, default: false}
  toolkit:
    description: The container toolkit will be installed; otherwise it is detected.
    type: bool
    default: false
  packages: {description: "By package manager and purpose; {branch} stands for the branch.", type: dict, required: true}
  root: {description: Root of the host's /sys and /proc., type: path, default: /}
author: gpucluster
"""

EXAMPLES = """
- name: Keep the driver of the image
  gpucluster_nvidia:
    driver: keep
    branch: "580"
    packages: "{{ nvidia_packages }}"
"""

RETURN = """
messages: {description: "What was found and done, for the operator.", returned: always, type: list}
units: {description: "Services that must run, as gpucluster_service takes them.", returned: always, type: list}
packages: {description: Packages that were installed or removed., returned: always, type: list}
"""

PREFIXES = ("nvidia", "libnvidia", "kmod-nvidia", "datacenter-gpu-manager", "cuda-drivers", "xserver-xorg-video-nvidia")
# The programs of services that have another name.
PROGRAMS = {"nvidia-fabricmanager": "nv-fabricmanager"}
# dnf sees packages that its main configuration excludes.
NOT_HELD = "--disableexcludes=main"
MODULES = "etc/modules-load.d/gpucluster-nvidia.conf"


def nvidia_packages(manage: Packages) -> dict[str, str]:
    """Installed packages of NVIDIA, name to version."""
    if manage.format == "deb":
        argv = ["dpkg-query", "--show", "--showformat=${Package}\t${Version}\t${db:Status-Status}\n"]
    else:
        argv = ["rpm", "--query", "--all", "--queryformat", "%{NAME}\t%{VERSION}-%{RELEASE}\tinstalled\n"]
    rows = (line.split("\t") for line in manage.run(argv, "the installed packages can't be listed").splitlines())
    return {name: version for name, version, state in rows if state == "installed" and name.startswith(PREFIXES)}


def available(manage: Packages, name: str) -> list[str]:
    """The versions in the repositories."""
    if manage.format == "deb":
        out = manage.run(["apt-cache", "madison", name])
        return [line.split("|")[1].strip() for line in out.splitlines() if "|" in line]
    out = manage.run([*DNF, NOT_HELD, "list", "--showduplicates", "--available", name])
    return [line.split()[1] for line in out.splitlines() if line.startswith(f"{name}.")]


def upstream(version: str) -> str:
    """NVIDIA's part of the version of a package: 580.95.05 of 1:580.95.05-0ubuntu1."""
    return version.rpartition(":")[2].partition("-")[0]


class Executor:
    """Executes a plan."""

    def __init__(self, module: AnsibleModule, manage: Packages) -> None:
        self.module, self.manage = module, manage
        self.packages: list[str] = []
        self.messages: list[str] = []

    def run(self, host: Hardware, made: Plan) -> None:
        """Execute the whole plan; package lists are updated once, and only if something is missing."""
        missing = [name for name in made.driver if name not in host.packages]
        version = host.driver
        if missing or made.removed or self.differing(made.same_version, host.packages, version):
            self.refresh()
        if made.removed:
            self.packages += made.removed
            self.call("remove", made.removed)
        if missing:
            self.packages += missing
            self.call("install", missing)
            version = ""
        now = host.packages if self.module.check_mode or not missing else nvidia_packages(self.manage)
        version = version or next((upstream(now[name]) for name in made.driver if name in now), "")
        self.match(self.differing(made.same_version, now, version), version)
        self.extras([name for name in made.optional if name not in now])

    def differing(self, wanted: list[str], have: dict[str, str], version: str) -> list[str]:
        """The packages that are not installed at this version, and nothing else serves in their place."""
        return [
            name
            for name in wanted
            if upstream(have.get(name, "")) != version and not (version and self.served(name, have, version))
        ]

    def served(self, name: str, have: dict[str, str], version: str) -> bool:
        """Whether the service of a package is there at this version, whatever the name of its package is.

        OCI's HPC images for Ubuntu have the fabric manager in a package without the branch in its name.
        """
        service = re.sub(r"-\d+$", "", name)
        alike = re.compile(rf"{re.escape(service)}(-\d+)?")
        if any(alike.fullmatch(other) and upstream(found) == version for other, found in have.items()):
            return True
        program = self.module.get_bin_path(PROGRAMS.get(service, service))
        if not program or self.module.run_command(["systemctl", "is-active", "--quiet", service])[0] != 0:
            return False
        return version in " ".join(self.module.run_command([program, "--version"])[1:])

    def match(self, wanted: list[str], version: str) -> None:
        """Install packages at exactly the version of the driver."""
        for name in wanted:
            if self.module.check_mode:
                self.packages.append(name)
                continue
            versions = available(self.manage, name)
            fitting = [candidate for candidate in versions if upstream(candidate) == version]
            if not fitting:
                self.module.fail_json(
                    msg=f"{name} must have exactly the driver's version {version}, but the repositories have "
                    f"{', '.join(versions) or 'no version'}: add a repository that has it, or choose an image with both"
                )
            separator = "=" if self.manage.format == "deb" else "-"
            self.packages.append(f"{name}{separator}{fitting[0]}")
            self.call("install", [self.packages[-1]])

    def extras(self, wanted: list[str]) -> None:
        """Install optional packages, if a repository has them."""
        found = [name for name in wanted if available(self.manage, name)]
        if found:
            self.packages += found
            self.call("install", found)
        if found != wanted:
            self.messages.append(f"no repository has {', '.join(sorted(set(wanted) - set(found)))}: skipped")

    def refresh(self) -> None:
        """Update the package lists."""
        if self.manage.format == "deb" and not self.module.check_mode:
            self.manage.run([*APT, "update"], "the repositories can't be read")

    def call(self, verb: str, names: list[str]) -> None:
        """Run the package manager."""
        if self.module.check_mode:
            return
        options = ["--no-install-recommends", "--allow-downgrades"] if verb == "install" else []
        # An earlier run has held packages of the driver (gpucluster_held_packages).
        argv = [*APT, "--allow-change-held-packages", *options, verb, *names]
        if self.manage.format == "rpm":
            argv = [*DNF, NOT_HELD, verb, *names]
        self.manage.run(argv, f"can't {verb} {', '.join(names)}")


def load_modules(module: AnsibleModule, root: Path, modules: list[str]) -> tuple[bool, list[str]]:
    """Load modules now and at every boot; returns whether something changed, and what could not be loaded."""
    file = root / MODULES
    text = "".join(f"{name}\n" for name in modules)
    old = file.read_text(encoding="utf-8") if file.exists() else ""
    changed, faults = old != text, []
    if module.check_mode:
        return changed, []
    if changed:
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text, encoding="utf-8") if text else file.unlink()
    for name in modules:
        if (root / "sys/module" / name).exists():
            continue
        code, out, err = module.run_command(["modprobe", name])
        if code == 0:
            changed = True
        else:
            words = (err.strip() or out.strip()).splitlines()[-1:]
            faults.append(f"{name} can't be loaded ({' '.join(words)}): RDMA can't access GPU memory")
    return changed, faults


def has_unit(root: Path, name: str) -> bool:
    """Whether systemd has a unit file of this service."""
    places = ("etc/systemd/system", "usr/lib/systemd/system", "lib/systemd/system")
    return any((root / place / f"{name}.service").is_file() for place in places)


def main() -> None:
    """Entry point."""
    spec: dict[str, Any] = {
        "driver": {"type": "str", "choices": ["keep", "install"], "required": True},
        "branch": {"type": "str", "required": True},
        "replace": {"type": "bool", "default": False},
        "dcgm": {"type": "bool", "default": False},
        "fabric": {"type": "bool", "default": False},
        "toolkit": {"type": "bool", "default": False},
        "packages": {"type": "dict", "required": True},
        "root": {"type": "path", "default": "/"},
    }
    module = AnsibleModule(argument_spec=spec, supports_check_mode=True)
    asked, manage, root = module.params, manager(module), Path(module.params["root"])
    desired = Desired(
        install=asked["driver"] == "install",
        branch=asked["branch"],
        replace=asked["replace"],
        dcgm=asked["dcgm"],
        fabric=asked["fabric"],
        packages=asked["packages"]["apt" if manage.format == "deb" else "dnf"],
    )
    host = survey(root, os.uname().release, {})
    if host.gpus:
        host = survey(root, os.uname().release, nvidia_packages(manage))
    made = plan(host, desired)
    if made.fault:
        module.fail_json(msg=made.fault)
    executor = Executor(module, manage)
    executor.run(host, made)
    if made.driver and not module.check_mode and not has_module(root, host.kernel):
        module.fail_json(
            msg=f"the driver is installed but has no module for the running kernel {host.kernel}: reboot into the "
            "newest kernel, or install the headers of this one so that the module is built, and run again"
        )
    modules_changed, faults = load_modules(module, root, made.modules)
    # It asks DCGM's daemon.
    exporter = has_unit(root, "nvidia-dcgm") and shutil.which("dcgm-exporter") is not None
    toolkit = bool(host.gpus) and (asked["toolkit"] or shutil.which("nvidia-container-runtime") is not None)
    module.exit_json(
        changed=bool(executor.packages or modules_changed),
        messages=[*made.messages, *executor.messages, *faults],
        packages=executor.packages,
        # An image may initialize the GPUs in another way, without one of these services.
        units=[{"name": unit} for unit in made.units if has_unit(root, unit)],
        ansible_facts={"gpucluster_nvidia": {**summary(host, made), "toolkit": toolkit, "dcgm_exporter": exporter}},
    )


if __name__ == "__main__":
    main()
