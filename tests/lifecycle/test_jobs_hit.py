"""Which jobs a plan hits: those on nodes that leave, permanent or elastic, with the time that they have left."""

from __future__ import annotations

import pytest

from gpucluster.lifecycle.jobs_hit import LeavingNodes, jobs_hit, leaving, seconds_left
from gpucluster.lifecycle.resize import PoolScaling, Scaling
from gpucluster.operations.drain import SlurmJob
from gpucluster.terraform.plan import ResourceChange

CONFIGURATION = 'module.pool["{}"].oci_core_instance_configuration.this[0]'


def test_nodes_leave_when_they_are_removed_replaced_or_rebooted() -> None:
    hosts = Scaling({"c": PoolScaling(("c-4",), ("c-3",), ("c-1",), ("c-2",))})
    assert leaving(hosts, (), ()) == LeavingNodes(frozenset({"c-1", "c-2", "c-3"}))
    assert not leaving(Scaling({"c": PoolScaling(added=("c-4",))}, "rebooted"), (), ())


def test_elastic_nodes_leave_with_their_pool_or_its_elasticity() -> None:
    changes = [
        ResourceChange(CONFIGURATION.format("burst"), "delete"),
        ResourceChange(CONFIGURATION.format("stays"), "delete"),
        ResourceChange(CONFIGURATION.format("other"), "replace"),
    ]
    found = leaving(Scaling({}), changes, ("stays", "other"))
    assert found == LeavingNodes(frozenset(), ("burst-e",))
    assert found.of(["burst-e1", "burst-extra-1", "burst-1", "other-e1"]) == ("burst-e1",)


def test_jobs_with_a_node_that_leaves_are_hit_the_longest_first() -> None:
    jobs = [
        SlurmJob("1", "alice", "5:00", "c-[1-2]"),
        SlurmJob("2", "bob", "1-00:00:00", "c-1"),
        SlurmJob("3", "carol", "UNLIMITED", "c-2,d-1"),
        SlurmJob("4", "dave", "1:00", "d-[1-2]"),
        SlurmJob("5", "eve", "1:00", "!nonsense"),
    ]
    found = jobs_hit(jobs, LeavingNodes(frozenset({"c-1", "c-2"})))
    assert [(each.id, each.left_s, each.nodes) for each in found] == [
        ("3", None, ("c-2",)),
        ("2", 86400, ("c-1",)),
        ("1", 300, ("c-1", "c-2")),
    ]
    assert str(found[0]) == "job 3 of carol on c-2 (UNLIMITED left)"


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("0:07", 7),
        ("5:00", 300),
        ("1:00:00", 3600),
        ("2-03:04:05", 183845),
        ("UNLIMITED", None),
        ("INVALID", None),
        ("NOT_SET", None),
        ("", None),
    ],
)
def test_the_time_left_in_seconds(text: str, seconds: int | None) -> None:
    assert seconds_left(text) == seconds
