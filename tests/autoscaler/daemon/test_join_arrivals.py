"""Which requested instances are configured together, and whether a host answers."""

from __future__ import annotations

import socket

from gpucluster.autoscaler.daemon.join_arrivals import Arrival, answering, due, overdue
from gpucluster.autoscaler.daemon.join_requests import JoinRequest


def arrival(number: int, since: float, answered_at: float | None = None) -> Arrival:
    return Arrival(
        JoinRequest(f"a-e{number}", "a", f"ocid1.instance.oc1.x.{number:020d}", f"10.0.0.{number}"), since, answered_at
    )


def test_nodes_of_one_job_begin_together_when_the_last_one_answers() -> None:
    first, last = arrival(1, 100.0, 103.0), arrival(2, 101.0)
    assert due([first, last], 105.0) == []
    last.answered_at = 106.0
    assert due([first, last], 106.0) == [first, last]


def test_a_single_node_begins_as_soon_as_it_answers() -> None:
    assert due([arrival(1, 100.0, 130.0)], 130.0) != []


def test_more_requests_may_follow_the_first() -> None:
    one = arrival(1, 100.0, 100.0)
    assert due([one], 101.9) == []
    assert due([one], 102.0) == [one]


def test_a_host_that_does_not_boot_is_not_awaited_for_long() -> None:
    ready, silent = arrival(1, 100.0, 103.0), arrival(2, 100.0)
    assert due([ready, silent], 107.9) == []
    assert due([ready, silent], 108.0) == [ready]
    assert overdue([ready, silent], 399.9) == []
    assert overdue([ready, silent], 400.0) == [silent]


def test_an_sshd_that_listens_answers_and_others_do_not() -> None:
    with socket.socket() as listening, socket.socket() as bound:
        listening.bind(("127.0.0.2", 0))
        listening.listen()
        port = listening.getsockname()[1]
        bound.bind(("127.0.0.3", port))  # nothing listens
        # The last address is for documentation: no packet to it is answered.
        found = answering(["127.0.0.2", "127.0.0.3", "192.0.2.99"], port=port)
    assert found == {"127.0.0.2"}
    assert answering([]) == frozenset()
