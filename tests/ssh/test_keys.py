"""Key pairs of this machine, with the real ssh-keygen."""

from __future__ import annotations

import stat
import subprocess
from pathlib import Path

import pytest

from gpucluster.errors import EnvironmentFault, ProcessError
from gpucluster.ssh import ensure_key, public_key
from tests.racing import GET_SET, race

AT_ONCE = 6


def _is_a_pair(private: Path) -> bool:
    made = subprocess.run(["ssh-keygen", "-y", "-f", private], capture_output=True, text=True, check=True).stdout
    return made.split()[:2] == public_key(private).split()[:2]


def test_a_pair_is_made_once_and_closed_to_others(tmp_path: Path) -> None:
    key = tmp_path / "keys" / "id"
    assert ensure_key(key, "a comment") == key
    first = key.read_bytes()
    assert ensure_key(key, "another") == key
    assert key.read_bytes() == first
    assert public_key(key).endswith(" a comment")
    assert stat.S_IMODE(key.stat().st_mode) == 0o600
    assert sorted(each.name for each in key.parent.iterdir()) == ["id", "id.pub"]


def test_several_processes_at_once_have_one_pair(tmp_path: Path) -> None:
    """Two first applies in one local cloud make the key of its hosts at the same moment."""
    key = tmp_path / "keys" / "id"
    code = (
        f"import sys; from pathlib import Path; from gpucluster.ssh import ensure_key, public_key\n{GET_SET}\n"
        "print(public_key(ensure_key(Path(sys.argv[1]), sys.argv[2])))"
    )
    printed = set(race(code, [[str(key), f"of {number}"] for number in range(AT_ONCE)]))
    assert len(printed) == 1
    assert _is_a_pair(key)


@pytest.mark.parametrize("left", ["id.pub", ".new-x"])
def test_what_an_interrupted_process_has_left_is_made_again(tmp_path: Path, left: str) -> None:
    (tmp_path / left).write_text("half")
    assert _is_a_pair(ensure_key(tmp_path / "id", "a comment"))


def test_a_pair_that_can_not_be_made_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = tmp_path / "bin" / "ssh-keygen"
    program.parent.mkdir()
    program.write_text("#!/bin/sh\necho no entropy >&2; exit 1\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(program.parent), prepend=":")
    with pytest.raises(ProcessError, match="no entropy"):
        ensure_key(tmp_path / "keys" / "id", "a comment")
    assert list((tmp_path / "keys").iterdir()) == []
    with pytest.raises(EnvironmentFault, match="public half"):
        public_key(tmp_path / "keys" / "id")
