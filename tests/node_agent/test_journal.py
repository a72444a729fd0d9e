"""The lines of a host's journal. journalctl is a double, as no journald runs here; what it is asked and answers is that
of systemd 252. tests/e2e/test_drift.py has the real one."""

from __future__ import annotations

import io
import json
from pathlib import Path

import pytest

from gpucluster.node_agent import journal
from gpucluster.node_agent.errors import Failed

LINE = "2026-11-30T01:00:00.000001+00:00 gpu-1 slurmd[7]: launch task"
DOUBLE = """#!/bin/sh
for word; do case $word in
  --after-cursor=s=gone) echo 'Failed to seek to cursor: Invalid argument' >&2; exit 1;;
esac; done
echo "$@" >> {log}
cat {answer}
exit {status}
"""


def asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, answer: str, status: int = 0) -> Path:
    log, text, program = (tmp_path / name for name in ("asked", "answer", "journalctl"))
    text.write_text(answer)
    program.write_text(DOUBLE.format(log=log, answer=text, status=status))
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    return log


def test_it_goes_on_after_the_cursor(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = asked(tmp_path, monkeypatch, f"-- Boot 1 --\n{LINE}\n  more\n-- cursor: s=2;i=7\n")
    assert journal.lines_after("s=1;i=4", 5.0) == {"cursor": "s=2;i=7", "lines": [LINE, "  more"], "cut": False}
    assert log.read_text().split()[-1] == "--after-cursor=s=1;i=4"
    journal.lines_after("", 5.4)
    assert log.read_text().split()[-1] == "--since=@5"


def test_a_new_journal_is_read_from_the_time_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = asked(tmp_path, monkeypatch, f"{LINE}\n-- cursor: s=3\n")
    assert journal.lines_after("s=gone", 7.0)["lines"] == [LINE]
    assert log.read_text().split()[-1] == "--since=@7"


def test_no_new_line_keeps_the_cursor(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked(tmp_path, monkeypatch, "", status=1)
    assert journal.lines_after("s=1", 0) == {"cursor": "s=1", "lines": [], "cut": False}


def test_too_many_lines_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(journal, "MOST_LINES", 2)
    asked(tmp_path, monkeypatch, f"{LINE}\n{LINE}\n-- cursor: s=2\n")
    assert journal.lines_after("s=1", 0)["cut"] is True


def test_a_host_without_journald_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(Failed, match="journalctl is not installed"):
        journal.lines_after("", 0)


@pytest.mark.parametrize("text", ["", "{}", '{"cursor": "", "since": "soon"}', "[]", "[" * 9000])
def test_a_request_that_is_none_is_refused(
    text: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO(text))
    assert journal.main([]) == 2
    assert "the request can't be read" in capsys.readouterr().err


def test_the_program_answers_with_json(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    asked(tmp_path, monkeypatch, f"{LINE}\n-- cursor: s=2\n")
    monkeypatch.setattr("sys.stdin", io.StringIO('{"cursor": "s=1", "since": 0}'))
    assert journal.main([]) == 0
    assert json.loads(capsys.readouterr().out) == {"cursor": "s=2", "lines": [LINE], "cut": False}
