"""The record of permanent hosts, and what is read for a report of cost."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from gpucluster.controller.accounts import usage
from gpucluster.node_agent.errors import Failed
from tests.doubles.commands import Commands

DAY = 86400.0


def listed(*names: str, pool: str = "gpu") -> list[dict[str, Any]]:
    return [{"id": f"o.{name}", "name": name, "pool": pool, "machine": {"shape": "X"}} for name in names]


def test_hosts_come_and_go_with_the_applies_that_list_them(tmp_path: Path) -> None:
    file = tmp_path / "hosts.json"
    assert usage.record_hosts(listed("a", "b"), file, 10.0) is True
    assert usage.record_hosts(listed("a", "b"), file, 20.0) is False
    assert usage.record_hosts([*listed("a"), *listed("b", pool="cpu")], file, 30.0) is True
    rows = usage._recorded(file)
    assert [(row["name"], row["pool"], row["began"], row["ended"]) for row in rows] == [
        ("a", "gpu", 10.0, None),
        ("b", "gpu", 10.0, 30.0),
        ("b", "cpu", 30.0, None),
    ]
    usage.record_hosts(listed("a"), file, 40.0)
    usage.record_hosts(listed("a"), file, 41.0 + usage.KEPT_S)
    assert [row["name"] for row in usage._recorded(file)] == ["a"]
    assert file.stat().st_mode & 0o077 == 0


def test_a_damaged_record_is_not_written_over(tmp_path: Path) -> None:
    file = tmp_path / "hosts.json"
    file.write_text("{")
    with pytest.raises(Failed, match="can't be read"):
        usage.record_hosts(listed("a"), file, 10.0)
    assert file.read_text() == "{"
    (tmp_path / "x.sqlite").write_text("no database" * 100)
    with pytest.raises(Failed, match="can't be read"):
        usage.instances(tmp_path / "x.sqlite")


def test_what_was_there_in_a_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(usage, "HOSTS", tmp_path / "hosts.json")
    monkeypatch.setattr(usage, "INSTANCES", tmp_path / "none.sqlite")
    usage.record_hosts(listed("a", "b"), usage.HOSTS, 10.0)
    usage.record_hosts(listed("a"), usage.HOSTS, 20.0)
    commands = Commands(tmp_path / "bin", monkeypatch)
    commands.prints("sacct", "7|alice|vision|11|12|cpu=1|a\n")
    found = usage.usage(25.0, 90061.0)
    assert ([row["name"] for row in found["hosts"]], found["jobs"]) == (["a"], "7|alice|vision|11|12|cpu=1|a\n")
    assert found["recorded_since"] == 10.0
    (call,) = commands.calls("sacct")
    assert "--duplicates" in call
    assert "--starttime=1970-01-01T00:00:25 --endtime=1970-01-02T01:01:01" in call
    assert [row["name"] for row in usage.usage(0.0, 15.0)["hosts"]] == ["a", "b"]
    commands.prints("sacct", "", 1, "no database")
    with pytest.raises(Failed, match="no database"):
        usage.usage(0.0, 15.0)
