"""Kernel modules that no host loads: the files of the role base, and the script that unloads them.

`modprobe` is a double: it takes a module from a list, unless that is in use. That a real kernel refuses a denied module
is not proved here: no test may change the modules of its machine.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from gpucluster.paths import ansible_dir
from tests.ansible.loading import read
from tests.ansible.render import render, variables

SCRIPT = ansible_dir() / "roles" / "base" / "files" / "gpucluster-deny-modules"
MODPROBE = """\
#!/bin/sh
[ "$1" = --remove ] || exit 2
grep -q "^$2 [0-9]* 0 " "$PROC/modules" || exit 1
sed -i "/^$2 /d" "$PROC/modules"
"""


def settings(*modules: str) -> str:
    return render("base", "gpucluster-denied.conf", variables({"base_denied_modules": list(modules)}, role="base"))


def test_the_file_denies_aliases_and_everything_else() -> None:
    lines = [line for line in settings("esp4", "rxrpc").splitlines() if not line.startswith("#")]
    assert lines == ["blacklist esp4", "install esp4 /bin/false", "blacklist rxrpc", "install rxrpc /bin/false"]


def test_what_is_loaded_and_not_in_use_is_unloaded(tmp_path: Path) -> None:
    (tmp_path / "denied.conf").write_text(settings("esp4", "rxrpc", "algif_aead"))
    (tmp_path / "modules").write_text("esp4 20480 0 - Live\nrxrpc 434176 2 - Live\nesp4_offload 8 0 - Live\n")
    (tmp_path / "modprobe").write_text(MODPROBE)
    (tmp_path / "modprobe").chmod(0o755)
    environment = {**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}", "PROC": str(tmp_path)}
    environment["RUN"] = str(tmp_path)
    argv = ["sh", str(SCRIPT), str(tmp_path / "denied.conf")]
    (tmp_path / "systemd").mkdir()
    (tmp_path / "systemd/container").touch()
    subprocess.run(argv, env=environment, check=True)
    assert "esp4 " in (tmp_path / "modules").read_text(), "a container leaves its machine's kernel alone"
    (tmp_path / "systemd/container").unlink()
    ended = subprocess.run(argv, env=environment, capture_output=True, text=True, check=True)
    assert ended.stderr == "rxrpc is in use, and stays loaded until this host restarts\n"
    assert [line.split()[0] for line in (tmp_path / "modules").read_text().splitlines()] == ["rxrpc", "esp4_offload"]


def test_without_modules_nothing_is_left() -> None:
    task = next(task for task in read("roles/base/tasks/configure.yml") if "base_denied_files" in task.get("vars", {}))
    written = {file["path"] for file in task["vars"]["base_denied_files"]}
    assert written == {file["path"] for file in task["vars"]["base_denied_absent"] if file["absent"]}


def test_shellcheck_finds_nothing() -> None:
    subprocess.run([Path(sys.executable).with_name("shellcheck"), SCRIPT], check=True)
