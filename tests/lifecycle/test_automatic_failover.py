"""What an apply lets the standby know, and which hosts it may ask; ssh and the cloud are doubles."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from gpucluster.cloud.members import PoolMember
from gpucluster.errors import ToolError
from gpucluster.events import Event
from gpucluster.failover.settings import WatchSettings, Witness
from gpucluster.handover import Outputs
from gpucluster.handover.inventory import hosts as hosts_of
from gpucluster.handover.inventory import standby_host
from gpucluster.lifecycle.automatic_failover import AutomaticFailover
from gpucluster.lifecycle.hosts import Deployment
from gpucluster.spec import loads
from gpucluster.ssh import Host
from tests.lifecycle.test_failover import ONE, TWO, Model
from tests.spec.spec_texts import LOCAL

_STANDBY = (
    "controller:\n  state_volume_gb: 50\n  standby: true\n  automatic_failover: true\n  failover_after_seconds: 30"
)
TEXT = LOCAL.replace("controller:", _STANDBY, 1)
KEY = "ssh-ed25519 AAAAstandby"


class Hosts:
    """The standby and other hosts: what they were told, and which of them do not answer."""

    def __init__(self, *silent: str) -> None:
        self.silent = silent
        self.let: list[tuple[str, str, tuple[str, ...]]] = []
        self.settings: list[str] = []
        self.unwatched = 0

    def watch(self, standby: Host, settings: str) -> None:
        assert standby.instance_id == TWO
        self.settings.append(settings)

    def unwatch(self, standby: Host) -> None:
        assert standby.instance_id == TWO
        self.unwatched += 1

    def key_of(self, host: Host) -> str:
        assert host.instance_id == TWO
        return KEY

    def let_ask(self, host: Host, key: str, addresses: tuple[str, ...]) -> None:
        if host.name in self.silent:
            raise ToolError("no answer")
        self.let.append((host.name, key, addresses))

    @staticmethod
    def host_keys(deployment: Deployment) -> dict[str, str]:
        return {host.instance_id: f"ssh-ed25519 {host.name}" for host in deployment.hosts if host.name != "compute-5"}


def deployment(text: str = TEXT, nodes: int = 5, login: int = 0) -> Deployment:
    spec = loads(text, "cluster.yml")
    outputs = Outputs.parse(Model().values)
    members = tuple(PoolMember(f"n{number}", f"compute-{number}", f"10.0.1.{number}") for number in range(1, nodes + 1))
    logins = tuple(
        PoolMember(f"l{number}", f"login-{number}", f"10.0.2.{number}", "1.2.3.4") for number in range(login)
    )
    outputs = replace(outputs, login=logins)
    by_pool = {"compute": members}
    hosts = hosts_of(spec, outputs.controller, by_pool, login=logins)
    return Deployment(outputs, by_pool, hosts, standby_host(spec, outputs))


@pytest.fixture
def events() -> list[Event]:
    return []


@pytest.fixture
def make(events: list[Event]) -> Callable[..., AutomaticFailover]:
    def made(hosts: Any, text: str = TEXT, lock: str = "vcn") -> AutomaticFailover:
        return AutomaticFailover(
            spec=loads(text, "cluster.yml"),
            hosts=hosts,
            mirror=hosts,
            authentication=lambda: {"method": "instance_principal"},
            lock=lambda: lock,
            tags=lambda: {"gpucluster": "demo"},
            on_event=events.append,
        )

    return made


def test_the_standby_learns_what_it_needs(make: Callable[..., AutomaticFailover]) -> None:
    hosts = Hosts()
    make(hosts).update(deployment())
    settings = WatchSettings.parse(hosts.settings[0])
    assert (settings.own, settings.other, settings.lock, settings.volume) == (TWO, ONE, "vcn", "volume")
    assert (settings.own_name, settings.other_name, settings.name) == (
        "demo-standby",
        "demo-controller",
        "demo-controller",
    )
    assert (settings.address, settings.other_address, settings.patience) == ("10.0.0.9", "10.0.0.2", 30.0)
    assert settings.networks
    assert settings.tags == {"gpucluster": "demo"}
    assert settings.witnesses[0] == Witness("compute-1", f"{settings.user}@10.0.1.1", "ssh-ed25519 compute-1")
    assert hosts.let == [(f"compute-{number}", KEY, ("10.0.0.9", "10.0.0.2")) for number in (1, 2, 3)]


def test_hosts_that_do_not_answer_are_passed_over(make: Callable[..., AutomaticFailover], events: list[Event]) -> None:
    hosts = Hosts("compute-1", "compute-3")
    make(hosts).update(deployment())
    # The host key of compute-5 is not known.
    assert [name for name, *_ in hosts.let] == ["compute-2", "compute-4"]
    assert [event.message.split(":")[0] for event in events] == [
        "compute-1 can't be asked about the controller", "compute-3 can't be asked about the controller",
    ]  # fmt: skip


def test_login_nodes_are_asked_first(make: Callable[..., AutomaticFailover]) -> None:
    hosts = Hosts()
    make(hosts).update(deployment(login=2))
    assert [name for name, *_ in hosts.let] == ["login-0", "login-1", "compute-1"]
    assert WatchSettings.parse(hosts.settings[0]).witnesses[0].target.endswith("@10.0.2.0")


def test_a_standby_that_shall_wait_for_an_operator_does(make: Callable[..., AutomaticFailover]) -> None:
    hosts, text = Hosts(), TEXT.replace("  automatic_failover: true\n", "")
    automatic = make(hosts, text)
    assert not automatic.wanted
    automatic.update(deployment(text))
    assert (hosts.settings, hosts.unwatched) == ([], 1)
    automatic.update(replace(deployment(text), standby=None))
    assert hosts.unwatched == 1


def test_without_a_network_that_can_be_held_nothing_is_set_up(make: Callable[..., AutomaticFailover]) -> None:
    hosts = Hosts()
    with pytest.raises(ToolError, match="does not list the network"):
        make(hosts, lock="").update(deployment())
    assert hosts.settings == []
