"""What Podman's failures mean for a container: only that there is none is that there is none. Podman is a double."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from gpucluster.errors import CloudError
from gpucluster.localcloud.engine import containers
from gpucluster.localcloud.engine.protocol import RunState
from gpucluster.localcloud.podman import command

# Answers a question about an object by the first line of a file, which is then removed, as long as there is more than
# one: "STATUS text". `inspect` and `exists` are asked in turn.
PODMAN = """\
#!/bin/sh
cd "${0%/*}"
echo "$*" >> calls
case "$2" in inspect|exists) ;; *) exit 0 ;; esac
read -r status text < "$2"
[ "$(wc -l < "$2")" -gt 1 ] && sed -i 1d "$2"
if [ "$status" = 0 ]; then echo "$text"; else echo "Error: $text" >&2; fi
exit "$status"
"""
NONE = "125 inspecting object: no such container one"
BUSY = "125 acquiring lock 7 for container one: file exists"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "podman").write_text(PODMAN)
    (tmp_path / "podman").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    monkeypatch.setattr(containers, "_POLL_S", 0.0)
    monkeypatch.setattr(command, "_LOOK_POLL_S", 0.0)
    return tmp_path


def answers(folder: Path, inspect: list[str], exists: list[str]) -> None:
    (folder / "inspect").write_text("".join(f"{line}\n" for line in inspect))
    (folder / "exists").write_text("".join(f"{line}\n" for line in exists))


def test_a_container_that_is_not_there_is_absent(folder: Path) -> None:
    answers(folder, [NONE], ["1"])
    assert containers.state("one") == RunState.ABSENT


def test_podman_is_asked_again_where_it_fails_for_another_reason(folder: Path) -> None:
    answers(folder, [BUSY, BUSY, "0 running"], ["0"])
    assert containers.state("one") == RunState.RUNNING
    answers(folder, [BUSY, "0 exited"], [BUSY, "0"])
    assert containers.state("one") == RunState.STOPPED
    # It is removed between the two questions.
    answers(folder, [BUSY], [BUSY, BUSY, "1"])
    assert containers.state("one") == RunState.ABSENT


@pytest.mark.parametrize("exists", ["0", BUSY])
def test_an_instance_is_not_taken_for_terminated_because_podman_fails(
    folder: Path, monkeypatch: pytest.MonkeyPatch, exists: str
) -> None:
    monkeypatch.setattr(containers, "LOOK_S", 0.0)
    monkeypatch.setattr(command, "LOOK_S", 0.0)
    answers(folder, [BUSY], [exists])
    with pytest.raises(CloudError, match="acquiring lock 7"):
        containers.state("one")
    with pytest.raises(CloudError, match="acquiring lock 7"):
        containers.terminate("one", folder)
    verbs = [line.split()[0] for line in (folder / "calls").read_text().splitlines()]
    assert "rm" not in verbs, "nor is what belongs to it removed"


def test_an_image_that_podman_can_not_look_for_is_not_taken_for_none(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(command, "LOOK_S", 0.0)
    answers(folder, [], [BUSY])
    with pytest.raises(CloudError, match="podman does not tell whether there is the image one: acquiring lock 7"):
        command.exists("image", "one")
    with pytest.raises(CloudError):
        containers.remove_image("one")
