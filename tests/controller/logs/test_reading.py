"""Choosing kept lines. The times are read by the real systemd-analyze."""

from __future__ import annotations

import io
import json
import shutil
import socket
from pathlib import Path

import pytest

from gpucluster.controller.logs.__main__ import main
from gpucluster.controller.logs.reading import Choice, entries, read
from gpucluster.controller.logs.store import LogStore
from gpucluster.node_agent.errors import Failed, Refused

LINES = [
    "2026-11-29T23:59:59.000001+00:00 gpu-1 kernel: NVRM: Xid 79",
    "2026-11-30T01:00:00.000001+00:00 gpu-1 slurmd[7]: launch task",
    "    of user alice",
    "2026-11-30T02:00:00.500000+00:00 gpu-1 sshd[9]: Closed",
]
#: When the lines were collected: late on 2026-11-29, and on the next day.
FIRST, SECOND, THIRD = 1_795_996_799.0, 1_796_004_100.0, 1_796_007_700.0
needs_systemd = pytest.mark.skipif(
    shutil.which("systemd-analyze") is None, reason="this machine has no systemd-analyze"
)


@pytest.fixture
def store(tmp_path: Path) -> LogStore:
    made = LogStore(tmp_path / "logs")
    made.add("gpu-1", LINES[:1], "a", FIRST)
    made.add("gpu-1", LINES[1:], "b", SECOND)
    return made


@pytest.mark.parametrize(
    ("choice", "expected"),
    [
        ({}, LINES),
        ({"lines": 1}, LINES[3:]),
        # The lines of one message stay together.
        ({"lines": 2}, LINES[1:]),
        ({"grep": "xid"}, LINES[:1]),
        ({"grep": "XID"}, []),
        ({"grep": "Xid"}, LINES[:1]),
        ({"grep": "alice"}, LINES[1:3]),
        # Not the time, which is not a part of the message.
        ({"grep": "2026"}, []),
    ],
)
def test_lines_are_chosen_by_expression_and_number(
    store: LogStore, choice: dict[str, object], expected: list[str]
) -> None:
    assert read(store, Choice("gpu-1", **choice)) == expected  # type: ignore[arg-type]


@needs_systemd
@pytest.mark.parametrize(
    ("since", "until", "expected"),
    [
        ("2026-11-30 00:30 UTC", "", LINES[1:]),
        ("", "2026-11-30 01:30 UTC", LINES[:3]),
        ("@1796000400", "@1796004001", LINES[1:]),
        ("2027-01-01", "", []),
        ("", "-30y", []),
    ],
)
def test_lines_are_chosen_by_time(store: LogStore, since: str, until: str, expected: list[str]) -> None:
    assert read(store, Choice("gpu-1", since=since, until=until)) == expected


@needs_systemd
@pytest.mark.parametrize("since", ["soon", "-", "2026-13-01", "--help", "@", "1; rm -rf /"])
def test_a_bad_time_is_refused(store: LogStore, since: str) -> None:
    with pytest.raises(Refused, match="the time can't be read"):
        read(store, Choice("gpu-1", since=since))


def test_without_systemd_analyze_a_time_is_an_error_that_says_so(
    store: LogStore, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(Failed, match="systemd-analyze is not installed"):
        read(store, Choice("gpu-1", since="-2h"))


@pytest.mark.parametrize("grep", ["(", "*", "a" + "(" * 200_000])
def test_an_expression_that_is_none_is_refused(store: LogStore, grep: str) -> None:
    with pytest.raises(Refused, match="the expression can't be read"):
        read(store, Choice("gpu-1", grep=grep))


@pytest.mark.parametrize("host", ["gpu-2", "", "..", "../gpu-1", "GPU-1", "gpu-1/../gpu-1"])
def test_a_host_without_lines_is_refused(store: LogStore, host: str) -> None:
    with pytest.raises(Refused, match="are kept"):
        read(store, Choice(host))


def test_messages_have_their_further_lines() -> None:
    assert list(entries(["a", " b", "c"])) == [["a", " b"], ["c"]]
    assert list(entries([])) == []


def test_the_program_answers_a_request(
    store: LogStore, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    here = socket.gethostname().split(".")[0].lower()
    monkeypatch.setattr(socket, "gethostname", lambda: f"{here}.example.org")
    store.add(here, ["2026-11-30T03:00:00.500000+00:00 head x: of the controller"], "c", THIRD)
    for host, expected in (("gpu-1", LINES[3:]), ("controller", list(store.lines(here)))):
        monkeypatch.setattr("sys.stdin", io.StringIO(json.dumps({"host": host, "lines": 1, "since": "", "more": 1})))
        assert main(["show"], store.folder) == 0
        assert json.loads(capsys.readouterr().out)["lines"] == expected
    assert main(["hosts"], store.folder) == 0
    assert json.loads(capsys.readouterr().out) == {"hosts": dict(sorted({"gpu-1": SECOND, here: THIRD}.items()))}


@pytest.mark.parametrize("text", ["", "[]", "{", '{"host": "gpu-1", "lines": "many"}', '{"host": "nowhere"}'])
def test_a_request_that_is_none_is_refused(
    store: LogStore, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], text: str
) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO(text))
    assert main(["show"], store.folder) == 2
    assert capsys.readouterr().out == ""
