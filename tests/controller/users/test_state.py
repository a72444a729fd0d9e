"""The directory as its entries describe it: who is privileged, and which limits are noted."""

from __future__ import annotations

from gpucluster.controller.users import state as states
from tests.controller.users.directory_model import CLUSTER, Directory
from tests.controller.users.harness import SUFFIX


def test_who_asks_for_nothing_is_not_privileged(there: Directory) -> None:
    there.want("alice")
    there.want("bob", groups=["privilege"])
    there.want("eve", gid=9876)
    state = there.state
    seen = {name: states.described(state, CLUSTER, state.users[name], {}) for name in state.users}
    assert {name: user["privileged"] for name, user in seen.items()} == {"alice": False, "bob": True, "eve": True}
    assert (seen["bob"]["gid"], seen["bob"]["groups"], seen["eve"]["group"]) == (9999, ["privilege"], "privilege")


def test_a_limit_of_slurm_is_noted_beside_what_others_have_written(there: Directory) -> None:
    there.want("alice")
    entry = there.entries[f"uid=alice,ou=people,{SUFFIX}"]
    entry["description"] = ["by hand"]
    for limits in ({"ml": "20"}, {}):
        plan = there.plan()
        plan.note_limits("alice", limits)
        there.apply(plan)
        assert there.state.users["alice"].limits == limits
        assert "by hand" in entry["description"]
    assert entry["description"] == ["by hand"]
