"""How much the services that run as root on the controller leave open, as systemd itself measures it.

It does not prove that a service can do its work in its sandbox: tests/e2e does.
"""

from __future__ import annotations

import re
import subprocess
from pathlib import Path
from typing import Any

import pytest

from gpucluster.controller.users import config, lock
from tests.ansible.loading import ANSIBLE
from tests.ansible.render import ELASTIC, render, variables

#: systemd's own scale: 0 is closed, 10 is open. Services without a sandbox of ours have about 9.6.
MOST_EXPOSED = 3.5
SLURM: dict[str, Any] = {"slurm_enabled": True}
KUBERNETES: dict[str, Any] = {"slurm_enabled": False, "scheduler": "kubernetes"}


def unit(role: str, name: str, more: dict[str, Any]) -> str:
    return render(role, f"{name}.service", variables(ELASTIC, role=role) | more)


def settings(text: str, name: str) -> list[str]:
    return re.findall(rf"^{name}=(.*)$", text, re.MULTILINE)


@pytest.mark.parametrize(
    ("role", "name", "more"),
    [
        ("autoscaler", "gpucluster-join", SLURM),
        ("autoscaler", "gpucluster-join", KUBERNETES),
        ("base", "gpucluster-host-certificate", {}),
        ("base", "gpucluster-host-certificate", {"entry_at_boot": True}),
        ("autoscaler", "gpucluster-maintenance", SLURM),
        ("health", "gpucluster-health", {}),
        ("slurm", "gpucluster-munge-key", SLURM),
        ("slurm", "gpucluster-munge-keys@", SLURM),
        ("slurm", "gpucluster-rest", SLURM | {"slurm_rest": True}),
    ],
    ids=[
        "join",
        "join with Kubernetes",
        "host certificate",
        "host certificate of an image",
        "maintenance",
        "health",
        "munge key of a host",
        "munge keys",
        "front of the REST API",
    ],
)
def test_systemd_finds_little_exposure(tmp_path: Path, role: str, name: str, more: dict[str, Any]) -> None:
    file = tmp_path / f"{name}.service"
    file.write_text(unit(role, name, more))
    argv = ["systemd-analyze", "security", "--offline=true", "--no-pager", str(file)]
    said = subprocess.run(argv, capture_output=True, text=True, check=True).stdout
    overall = re.search(r"Overall exposure level for \S+: ([0-9.]+)", said)
    assert overall, said
    assert float(overall[1]) <= MOST_EXPOSED, said


_ASKED = re.compile(r"agent_program \}\} (release-server|(monitor|exporter|health) serve)\b")
UNITS = sorted((ANSIBLE / "roles").glob("*/templates/*.service.j2"))
ASKED = [file for file in UNITS if _ASKED.search(file.read_text())]


@pytest.mark.parametrize("file", ASKED, ids=lambda file: file.name)
def test_a_service_that_others_ask_is_started_when_it_listens(file: Path) -> None:
    """Else what follows it in a play, or another unit, asks it before it can answer."""
    text = file.read_text()
    assert settings(text, "Type") == ["notify"]
    # sandbox.j2 lets services reach systemd's socket; who has a list of its own needs it there.
    assert "sandbox.j2" in text or "AF_UNIX" in settings(text, "RestrictAddressFamilies")[0]


def test_four_services_are_asked_by_others() -> None:
    assert len(ASKED) == 4


#: Drop-ins: they leave the description to the unit of the package.
DROP_INS = [file for file in UNITS if not settings(file.read_text(), "Description")]


@pytest.mark.parametrize("file", DROP_INS, ids=lambda file: file.name)
def test_a_drop_in_with_a_command_after_the_start_names_no_file_of_the_package(file: Path) -> None:
    """With an ExecStartPost systemd waits for PIDFile, also where it would not without: slurmdbd of Debian 12."""
    text = file.read_text()
    assert not settings(text, "ExecStartPost") or settings(text, "PIDFile") == [""]


def test_the_drop_in_of_slurmdbd_is_among_them() -> None:
    assert "slurmdbd.service.j2" in [file.name for file in DROP_INS]


def test_root_s_service_for_new_nodes_keeps_what_it_needs() -> None:
    text = unit("autoscaler", "gpucluster-join", SLURM)
    assert settings(text, "CapabilityBoundingSet") == ["CAP_CHOWN CAP_DAC_OVERRIDE CAP_FOWNER"]
    assert settings(text, "ReadWritePaths") == [
        "-/var/lib/gpucluster-autoscaler -/run/gpucluster-join -/var/lib/gpucluster-join"
        " -/var/lib/gpucluster-directory -/run/gpucluster-directory.lock"
    ]
    # What is missing when it starts, it could not make.
    assert settings(text, "ExecStartPre") == ["+/usr/bin/touch /run/gpucluster-directory.lock"]
    assert str(config.HOSTS_FILE.parent) in settings(text, "ReadWritePaths")[0]
    assert str(lock.FILE) in settings(text, "ReadWritePaths")[0]
    # The last one counts: the public key of the controller is in the home of its login user.
    assert settings(text, "ProtectHome")[-1] == "read-only"
    assert "CAP_SETUID" in settings(unit("autoscaler", "gpucluster-join", KUBERNETES), "CapabilityBoundingSet")[0]
