"""The client of the RAS port, against a server that speaks NCCL's protocol (a double: tests/doubles/ras_server.py)."""

from __future__ import annotations

import pytest

from gpucluster.node_agent.watch import client, ras
from tests.addresses import free_port
from tests.doubles import ras_server
from tests.doubles.ras_server import RasServer

COUNTS = [{"AllReduce": 220}, {"AllReduce": 200}]


def test_json_is_asked_for_and_read() -> None:
    server = RasServer(json_text=ras_server.json_text(COUNTS))
    with server.running() as address:
        answer = client.ask(address)
    assert [each.rank.rank for each in answer.behind] == [1]
    assert server.lines == ["CLIENT PROTOCOL 2", "TIMEOUT 5", "SET FORMAT json", "VERBOSE STATUS"]


def test_a_release_without_json_is_read_as_text() -> None:
    server = RasServer(text=ras_server.text(warnings=ras_server.mismatch("AllReduce", [220, 220, 200, 220])))
    with server.running() as address:
        assert [each.rank.rank for each in client.ask(address).behind] == [2]


def test_a_stopped_process_does_not_hide_the_others() -> None:
    with RasServer(json_text=ras_server.json_text(COUNTS), silent=2).running() as address:
        assert client.ask(address, first_s=0.2).ranks


def test_an_answer_of_another_job_is_tried_again() -> None:
    server = RasServer(json_text=ras_server.json_text(COUNTS, first_pid=50))

    def other(number: int) -> None:
        if number > 1:
            server.json_text = ras_server.json_text(COUNTS, first_pid=90)

    server.before = other

    def wanted(answer: ras.RasAnswer) -> bool:
        return any(rank.pid == 90 for rank in answer.ranks)

    with server.running() as address:
        assert wanted(client.ask(address, wanted))


def test_answers_of_other_jobs_alone_are_no_answer() -> None:
    server = RasServer(json_text=ras_server.json_text(COUNTS))
    with server.running() as address, pytest.raises(client.NoRasAnswer, match="another job"):
        client.ask(address, lambda _answer: False, tries=2)


def test_nothing_listens() -> None:
    with pytest.raises(client.NoRasAnswer, match="nothing listens"):
        client.ask(("127.0.0.1", free_port()))


def test_all_processes_are_stopped() -> None:
    with RasServer(silent=100).running() as address, pytest.raises(client.NoRasAnswer, match=r"timed out|in time"):
        client.ask(address, tries=2, first_s=0.1)


@pytest.mark.parametrize("raw", [b"x" * 1000, b"HTTP/1.1 400 Bad Request\n"])
def test_what_is_no_nccl_is_no_answer_however_much_it_says(raw: bytes) -> None:
    with RasServer(raw=raw).running() as address, pytest.raises(client.NoRasAnswer, match=r"no end|not NCCL"):
        client.ask(address, tries=1)


def test_an_answer_without_end_is_not_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client, "LARGEST", 1 << 20)
    with (
        RasServer(json_text="{" + " " * (2 << 20)).running() as address,
        pytest.raises(client.NoRasAnswer, match="more than"),
    ):
        client.ask(address, tries=1)
