"""Tables of users on a terminal."""

from __future__ import annotations

from gpucluster.controller.users import tables


def test_tables_hold_nothing_that_a_terminal_would_obey() -> None:
    user = {"name": "alice", "uid": 1, "group": "g", "groups": [], "full_name": "\x1b[2J", "enabled": True}
    shown = tables.text("user.list", {"users": [{**user, "slurm_account": None}]})
    assert "\x1b" not in shown
    assert shown.splitlines()[1].split()[:3] == ["alice", "1", "g"]


def test_columns_after_a_japanese_name_stand_below_their_heading() -> None:
    lines = tables.table(("FULL NAME", "STATE"), [("山田 太郎", "enabled"), ("Alice", "enabled")])
    assert lines == ["FULL NAME  STATE", "山田 太郎  enabled", "Alice      enabled"]
