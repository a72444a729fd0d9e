"""Tables of users on a terminal."""

from __future__ import annotations

from gpucluster.controller.users import tables


def test_tables_hold_nothing_that_a_terminal_would_obey() -> None:
    user = {"name": "alice", "uid": 1, "group": "g", "groups": [], "full_name": "\x1b[2J", "enabled": True}
    shown = tables.text("user.list", {"users": [{**user, "slurm_account": None}]})
    assert "\x1b" not in shown
    assert shown.splitlines()[1].split()[:3] == ["alice", "1", "g"]
