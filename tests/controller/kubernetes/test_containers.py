"""Containers of the control plane, with programs in the place of containerd's and systemd's (doubles)."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpucluster.controller.kubernetes import containers
from gpucluster.node_agent.errors import Failed

# Containers are files of a folder; their names are those of the parts. `tasks list` has those that are not empty.
_CTR = """\
#!/bin/sh
shift
case "$1 $2" in
"containers list") part=${4##*==}; [ -e "$PARTS/$part" ] && echo "$part" ;;
"tasks list") echo "TASK PID STATUS"; for file in "$PARTS"/*; do [ -s "$file" ] && echo "${file##*/} 7 RUNNING"; done ;;
esac
exit 0
"""
_SYSTEMCTL = """\
#!/bin/sh
echo "$*" >> "$PARTS.log"
for file in "$PARTS"/*; do [ "${file##*/}" = "$NEVER" ] || echo 1 > "$file"; done
"""


@pytest.fixture
def parts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of the containers. All run."""
    folder = tmp_path / "parts"
    folder.mkdir()
    for part in containers.PARTS:
        (folder / part).write_text("1\n")
    programs = tmp_path / "bin"
    programs.mkdir()
    for name, text in (("ctr", _CTR), ("systemctl", _SYSTEMCTL)):
        (programs / name).write_text(text)
        (programs / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{programs}:/usr/bin:/bin")
    monkeypatch.setenv("PARTS", str(folder))
    monkeypatch.setenv("NEVER", "")
    return folder


def test_parts_that_have_ended_are_started_without_a_pause(parts: Path) -> None:
    for part in ("kube-scheduler", "kube-controller-manager"):
        (parts / part).write_text("")
    waits: list[float] = []
    assert containers.start_ended_parts(waits.append) == ["kube-scheduler", "kube-controller-manager"]
    assert all(containers.running(part) for part in containers.PARTS)
    assert parts.with_suffix(".log").read_text() == "restart kubelet\n"


def test_where_all_run_kubelet_is_left_alone(parts: Path) -> None:
    assert containers.start_ended_parts(lambda _seconds: None) == []
    assert not parts.with_suffix(".log").exists()


def test_a_part_that_does_not_start_is_named(parts: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(containers, "_STARTED_WITHIN_S", 0.0)
    monkeypatch.setenv("NEVER", "kube-scheduler")
    (parts / "kube-scheduler").write_text("")
    with pytest.raises(Failed, match="kube-scheduler does not run"):
        containers.start_ended_parts(lambda _seconds: None)
