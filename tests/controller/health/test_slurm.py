"""Slurm's and munge's commands: what is read, and what is asked for. They are scripts that print and note."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpucluster.controller.health.slurm import SlurmCommands
from gpucluster.node_agent.errors import Failed, Refused
from gpucluster.node_agent.health import credentials

# As scontrol 24.11 prints them, shortened. A reason may look like other fields.
LINES = """\
NodeName=gpu-1 Arch=x86_64 CoresPerSocket=32 NodeAddr=10.0.1.2 NodeHostName=gpu-1 State=IDLE+DRAIN ThreadsPerCore=2 \
Reason=gpucluster: check failed: gpu: State=IDLE ThreadsPerCore=1 [x] [slurm@2026-11-22T10:00:00]
NodeName=gpu-2 CoresPerSocket=32 NodeAddr=10.0.1.3 NodeHostName=gpu-2 State=MIXED* ThreadsPerCore=2 InstanceId=ocid1.b
NodeName=gpu-e1 CoresPerSocket=32 NodeAddr=gpu-e1 NodeHostName=gpu-e1 State=IDLE+CLOUD+POWERED_DOWN ThreadsPerCore=2
NodeName=gpu-e2 CoresPerSocket=32 NodeAddr=10.0.1.9 NodeHostName=x State=IDLE+CLOUD ThreadsPerCore=2 InstanceId=(null)
NodeName=gpu-e3 CoresPerSocket=32 NodeAddr=10.0.1.9 NodeHostName=x State=IDLE+CLOUD ThreadsPerCore=2
"""


@pytest.fixture
def scontrol(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "lines").write_text(LINES)
    program = tmp_path / "scontrol"
    program.write_text(f'#!/bin/sh\nprintf "%s\\n" "$@" >> {tmp_path}/asked\ncat {tmp_path}/lines\n')
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    return tmp_path


def test_what_slurm_reports_of_nodes(scontrol: Path) -> None:
    slurm = SlurmCommands(lambda name: name.partition("-")[0])
    found = slurm.nodes()
    assert list(found) == ["gpu-1", "gpu-2", "gpu-e1", "gpu-e2", "gpu-e3"]
    first = found["gpu-1"]
    assert (first.pool, first.ours, first.away) == ("gpu", True, False)
    assert first.reason.startswith("gpucluster: check failed: gpu: State=IDLE")
    assert (found["gpu-2"].free, found["gpu-2"].instance, found["gpu-e2"].instance) == (True, "ocid1.b", "")
    assert found["gpu-e1"].away
    # What is powered down has no address, and one that two nodes have proves nothing.
    assert slurm.addresses() == {"10.0.1.2": "gpu-1", "10.0.1.3": "gpu-2"}


def test_what_is_asked_for(scontrol: Path) -> None:
    slurm = SlurmCommands(lambda _name: "")
    slurm.drain("gpu-1", "gpucluster: check failed: gpu: 7 of 8")
    slurm.undrain("gpu-1")
    slurm.reboot("gpu-1")
    drain, undrain = ["state=drain", "reason=gpucluster: check failed: gpu: 7 of 8"], ["state=resume"]
    assert (scontrol / "asked").read_text().splitlines() == [
        *("update", "nodename=gpu-1", *drain),
        *("update", "nodename=gpu-1", *undrain),
        # Neither ASAP nor nextstate: slurmctld would end the drain before the checks have passed.
        *("reboot", "gpu-1"),
    ]


def test_output_that_is_cut_off_is_not_an_answer(scontrol: Path) -> None:
    (scontrol / "lines").write_text(LINES + "NodeName=gpu-e4 CoresPerSo")
    with pytest.raises(Failed):
        SlurmCommands(lambda _name: "").nodes()


def test_a_refusal_is_an_error_with_slurms_words(scontrol: Path) -> None:
    (scontrol / "scontrol").write_text("#!/bin/sh\necho 'Unable to contact slurm controller' >&2\nexit 1\n")
    with pytest.raises(Failed, match="Unable to contact"):
        SlurmCommands(lambda _name: "").nodes()


@pytest.mark.parametrize(
    ("printed", "status", "uid", "words"),
    [
        ("STATUS:           Success (0)\nUID:              root (0)\n\n{}\n\nUID: root (0)", 0, 0, ""),
        ("STATUS:           Success (0)\nUID:              root (0)x (1000)\n\n{}", 0, 1000, ""),
        ("STATUS:           Success (0)\nUID:              10007\n\n{}", 0, 10007, ""),
        ("STATUS:           Replayed credential (17)\n", 17, None, "Replayed"),
        ("STATUS:           Success (0)\n\nUID: root (0)", 0, None, "can't be read"),
        ("", 1, None, "munge refuses"),
    ],
)
def test_who_wrote_a_credential(
    printed: str, status: int, uid: int | None, words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "printed").write_text(printed)
    program = tmp_path / "unmunge"
    program.write_text(f"#!/bin/sh\ncat {tmp_path}/printed\nexit {status}\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    if uid is not None:
        found, text = credentials.open_sealed("MUNGE:x:")
        assert found == uid
        assert text.startswith("{}")
        return
    with pytest.raises((Refused, Failed), match=words):
        credentials.open_sealed("MUNGE:x:")
