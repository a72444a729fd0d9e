"""Requests to configure new nodes: what root accepts, what it refuses, and real runs of ansible-playbook.

The playbook is a small one of this test, and its hosts are this machine (ansible_connection: local).
"""

from __future__ import annotations

import fcntl
import json
import os
import re
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from gpucluster.autoscaler.daemon import join, join_key
from gpucluster.autoscaler.daemon.join import JoinService
from gpucluster.autoscaler.daemon.join_requests import JoinResult, Requests
from gpucluster.errors import EnvironmentFault
from tests.autoscaler.daemon.join_samples import INVENTORY, RAW, request
from tests.waiting import PATIENCE_S, wait_for

pytestmark = pytest.mark.slow
# Real runs take a minute; two workers can share them.
SECOND_PART = pytest.mark.xdist_group("test_join-second-part")


# --- the service, with a real ansible-playbook -----

PLAYBOOK = """
- hosts: controller
  gather_facts: false
  tasks:
    - ansible.builtin.assert:
        that: ansible_connection == 'local'
- hosts: joining
  gather_facts: false
  strategy: free
  tasks:
    - ansible.builtin.command: flock --shared {{ made }}/../gate true
      when: inventory_hostname == 'compute-e9'
    - ansible.builtin.assert:
        that: "'pool_compute' in group_names"
    - ansible.builtin.fail:
        msg: the disk is bad
      when: inventory_hostname == 'compute-e2'
    - ansible.builtin.copy:
        content: "{{ ansible_host }} {{ ansible_user }} {{ instance_id }}"
        dest: "{{ made }}/{{ inventory_hostname }}"
        mode: "0644"
    - ansible.builtin.copy:
        content: "{{ ansible_ssh_private_key_file }}"
        dest: "{{ made }}/key"
        mode: "0644"
"""


class CountedService(JoinService):
    """Counts how often it has looked for requests."""

    looks = 0

    def serve_once(self) -> None:
        try:
            super().serve_once()
        finally:
            self.looks += 1


class Root:
    """The service in a thread, with folders of its own."""

    def __init__(self, folder: Path) -> None:
        self.state, self.work, self.made = folder / "state", folder / "work", folder / "made"
        self.public_key = folder / "join.pub"
        for one in (self.state, self.made):
            one.mkdir(mode=0o700)
        self.playbooks = folder / "ansible"
        self.playbooks.mkdir()
        (self.playbooks / "ansible.cfg").write_text("[defaults]\n")
        (self.playbooks / "join.yml").write_text(PLAYBOOK)
        self.config, self.inventory = folder / "autoscaler.json", folder / "inventory.yml"
        self.config.write_text(json.dumps(RAW))
        variables = {**INVENTORY["all"]["vars"], "ansible_connection": "local", "made": str(self.made),
                     "ansible_python_interpreter": "/usr/bin/python3"}  # fmt: skip
        self.inventory.write_text(json.dumps({"all": {**INVENTORY["all"], "vars": variables}}))
        self.requests = Requests(self.state)
        self.silent: set[str] = set()  # addresses at which no sshd answers; no test has hosts of its own

    @contextmanager
    def running(self) -> Iterator[CountedService]:
        service = CountedService(
            self.config,
            self.state,
            inventory=self.inventory,
            work=self.work,
            public_key=self.public_key,
            playbooks=self.playbooks,
            answers=lambda addresses: {address for address in addresses if address not in self.silent},
            settle=0.3,
            window=0.6,
            patience=2.0,
        )
        thread = threading.Thread(target=service.run)
        thread.start()
        try:
            yield service
        finally:
            service.stop()
            thread.join(timeout=PATIENCE_S)

    def results(self, count: int) -> Mapping[str, JoinResult]:
        wait_for(f"{count} requests have a result", lambda: len(self.requests.results()) >= count)
        return self.requests.results()

    @contextmanager
    def slow_host(self) -> Iterator[None]:
        """The tasks of compute-e9 do not end before the end of the block."""
        with (self.made.parent / "gate").open("wb") as gate:
            fcntl.flock(gate, fcntl.LOCK_EX)
            try:
                yield
            finally:
                fcntl.flock(gate, fcntl.LOCK_UN)


@pytest.fixture
def root(tmp_path: Path) -> Root:
    return Root(tmp_path)


def test_those_that_come_together_are_configured_together_and_one_that_fails_harms_no_other(root: Root) -> None:
    for number in (1, 2, 3):
        root.requests.submit(request(number))
    with root.running():
        found = root.results(3)
    assert found[request(1).instance_id] == JoinResult(True, "configured")
    assert found[request(3).instance_id].ok
    assert not found[request(2).instance_id].ok
    assert "the disk is bad" in found[request(2).instance_id].message
    assert (root.made / "compute-e1").read_text() == f"10.9.1.11 opc {request(1).instance_id}"
    # No key comes from the daemon's folder, and nothing of a run stays.
    assert (root.made / "key").read_text() == str(root.work / join.KEY)
    assert sorted(entry.name for entry in root.work.iterdir()) == ["ansible", "known_hosts", "ssh"]
    assert [entry.name for entry in (root.work / "ansible").iterdir()] == ["compiled"]
    for file in (root.state / "join").glob("*.result.json"):
        assert file.stat().st_mode & 0o777 == 0o600


def test_the_key_of_new_nodes_is_roots_and_only_its_public_half_is_for_the_daemon(root: Root) -> None:
    with root.running():
        wait_for("the public key is there", root.public_key.exists)
    private = root.work / join.KEY
    for path, mode in ((root.work, 0o700), (private.parent, 0o700), (private, 0o600), (root.public_key, 0o644)):
        assert path.stat().st_mode & 0o777 == mode, path
    public = join_key.read(root.public_key)
    assert public.split()[0] == "ssh-ed25519"
    root.public_key.unlink()
    with root.running():
        wait_for("the public key is there", root.public_key.exists)
    assert join_key.read(root.public_key) == public, "instances that boot just now know this one"
    root.public_key.unlink()
    with pytest.raises(EnvironmentFault, match="systemctl status gpucluster-join"):
        join_key.read(root.public_key)


def test_a_host_that_never_answers_is_reported_and_holds_up_no_other(root: Root) -> None:
    root.silent = {request(4).address}
    with root.running():
        for number in (1, 4):
            root.requests.submit(request(number))
        found = root.results(2)
    assert found[request(1).instance_id].ok
    assert found[request(4).instance_id] == JoinResult(False, "sshd at 10.9.1.14 has not answered for 2 seconds")


def test_a_slow_host_does_not_hold_up_the_next_ones(root: Root) -> None:
    with root.running():
        with root.slow_host():
            root.requests.submit(request(9))
            wait_for("its run has begun", lambda: list(root.work.glob("run-*")))
            root.requests.submit(request(1))
            assert list(root.results(1)) == [request(1).instance_id]
        root.results(2)


@SECOND_PART
def test_a_run_that_takes_too_long_is_ended_and_reported(root: Root) -> None:
    root.config.write_text(json.dumps({**RAW, "times": {"join_deadline": 3}}))
    with root.running(), root.slow_host():
        root.requests.submit(request(9))
        [result] = root.results(1).values()
    assert not result.ok
    # 137: it had not ended ten seconds after it was asked to.
    assert re.search("ended with (124|137)", result.message)


@SECOND_PART
def test_a_broken_request_is_refused_with_words_and_stops_nothing(root: Root) -> None:
    folder = root.state / "join"
    folder.mkdir()
    secret = root.state.parent / "secret"
    secret.write_text(json.dumps({"node": "compute-e1", "pool": "compute"}))
    (folder / "abcdefgh-compute-e1.json").write_text("{")
    (folder / "abcdefgh-compute-e2.json").symlink_to(secret)
    (folder / "abcdefgh-compute-e4.json").write_text("x" * 10000)
    os.mkfifo(folder / "abcdefgh-compute-e5.json")
    (folder / "UPPER.json").write_text("{}")
    outside = replace(request(6), address="8.8.8.8")
    root.requests.submit(outside)
    moved = folder / "abcdefgh-compute-e7.json"
    moved.write_text(json.dumps({"node": "compute-e6", "pool": "compute", "instance_id": "i", "address": "a"}))
    with root.running():
        root.requests.submit(request(1))
        wait_for("all have a result", lambda: len(list(folder.glob("*.result.json"))) == 7)
        assert root.requests.results()[request(1).instance_id].ok

    def said(name: str) -> str:
        return str(json.loads((folder / f"{name}.result.json").read_text())["message"])

    assert "has a wrong form" in said("abcdefgh-compute-e1")
    assert "Too many levels of symbolic links" in said("abcdefgh-compute-e2")
    assert "has more than 4096 bytes" in said("abcdefgh-compute-e4")
    assert "is not a regular file" in said("abcdefgh-compute-e5")
    assert "does not match the name of its file" in said("abcdefgh-compute-e7")
    assert "not in the private network" in root.requests.results()[outside.instance_id].message
    assert not (folder / "UPPER.result.json").exists()


@SECOND_PART
def test_results_never_go_where_a_link_points(root: Root) -> None:
    elsewhere = root.state.parent / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "abcdefgh-compute-e1.json").write_text("{")
    (root.state / "join").symlink_to(elsewhere)
    with root.running() as service:
        wait_for("it has looked", lambda: service.looks)
    assert [entry.name for entry in elsewhere.iterdir()] == ["abcdefgh-compute-e1.json"]


@SECOND_PART
def test_what_a_killed_service_left_is_done_by_the_next(root: Root) -> None:
    root.requests.submit(request(1))
    (root.work / "run-left").mkdir(parents=True)
    (root.work / "run-left" / "new.yml").write_text("all: {}")
    with root.running():
        assert root.results(1)[request(1).instance_id].ok
    assert not (root.work / "run-left").exists()


@SECOND_PART
def test_while_the_policy_cannot_be_read_requests_wait(root: Root, monkeypatch: pytest.MonkeyPatch) -> None:
    good = root.config.read_text()
    root.config.write_text("{")
    root.requests.submit(request(1))
    with root.running() as service:
        wait_for("it has looked", lambda: service.looks)
        assert not root.requests.results()
        root.config.write_text(good)
        assert root.results(1)[request(1).instance_id].ok
