"""The journal on disk: what a killed process leaves can be read and continued."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpucluster.controller.health import journal as journals
from gpucluster.controller.health.journal import Journal
from gpucluster.controller.health.policy import JournalRecord, Moment, RecordKind

AT = Moment(5.0, "boot", 1.0)
FIRST = JournalRecord(RecordKind.DRAIN, "a", AT, "compute", ("gpu", "disk"), 'a "reason"\nof two lines', "ocid1.x")
SECOND = JournalRecord(RecordKind.DONE, "a", AT)


def test_what_is_written_is_read(tmp_path: Path) -> None:
    file = Journal(tmp_path / "journal")
    assert file.read() == []
    file.append(FIRST)
    file.append(SECOND)
    assert file.read() == Journal(tmp_path / "journal").read() == [FIRST, SECOND]


def test_a_line_that_was_cut_off_costs_only_itself(tmp_path: Path) -> None:
    path = tmp_path / "journal"
    Journal(path).append(FIRST)
    whole = path.read_bytes()
    for size in range(len(whole)):
        path.write_bytes(whole + whole[:size])
        file = Journal(path)
        # Without the end of the line alone, the record is whole.
        expected = [FIRST, FIRST] if size == len(whole) - 1 else [FIRST]
        assert file.read() == expected
        file.append(SECOND)
        assert file.read() == [*expected, SECOND], size


@pytest.mark.parametrize("line", ["[]", "null", "{}", "7", '{"kind": "drain"}', '{"kind": "x", "node": "a"}', "\x00"])
def test_a_line_that_is_none_is_left_out(tmp_path: Path, line: str) -> None:
    path = tmp_path / "journal"
    path.write_text(f"{line}\n")
    file = Journal(path)
    file.append(FIRST)
    assert file.read() == [FIRST]


def test_another_process_writes_too(tmp_path: Path) -> None:
    ours, theirs = Journal(tmp_path / "journal"), Journal(tmp_path / "journal")
    ours.append(FIRST)
    assert theirs.read() == [FIRST]
    theirs.append(SECOND)
    assert ours.read() == [FIRST, SECOND]


def test_a_long_journal_loses_what_matters_no_more(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(journals, "_LONG", 10)
    file = Journal(tmp_path / "journal")
    old = [FIRST, SECOND, JournalRecord(RecordKind.ENDED, "a", AT)]
    in_force = [
        JournalRecord(RecordKind.PERSON, "b", AT, "compute", ("gpu",), "r"),
        JournalRecord(RecordKind.DONE, "b", AT),
    ]
    file.append(*old, *in_force)
    file.shorten(Moment(5.0 + 30 * 86400, "other", 1.0))
    assert file.read() == in_force
