"""The steps against the API of a local cloud that launches nothing: the real SDK, and the permissions of the standby
alone. What starts the services is a double (tests/e2e/test_standby.py has the real one)."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from oci.core import models

from gpucluster.cloud.client import CloudAccess
from gpucluster.cloud.lock_tag import LockTag
from gpucluster.cloud.service_move import ServiceMove
from gpucluster.errors import CloudError, LockedError
from gpucluster.events import Event
from gpucluster.failover import promotion
from gpucluster.failover.decide import Decision
from gpucluster.failover.promotion import COMMAND, Promotion
from gpucluster.failover.settings import WatchSettings
from gpucluster.failover.watcher import ROUND_SECONDS, Watcher
from gpucluster.handover import iam
from gpucluster.node_agent import programs
from gpucluster.node_agent.errors import Failed
from gpucluster.node_agent.standby import scope
from gpucluster.node_agent.state_volume import layout
from gpucluster.oci.run_lock import Holder
from gpucluster.spec import loads
from tests.failover.test_watcher import SETTINGS
from tests.localcloud.api_harness import Api, running
from tests.localcloud.entitled import Entitled
from tests.spec.spec_texts import LOCAL
from tests.waiting import PATIENCE_S

pytestmark = pytest.mark.slow

_STANDBY = "controller:\n  state_volume_gb: 50\n  standby: true\n  automatic_failover: true"
TEXT = LOCAL.replace("controller:", _STANDBY, 1) + "maintenance: {enabled: false}\n"
SPEC = loads(TEXT, "cluster.yml")
RUN = Holder("abcd", "2026-01-01T00:00:00+00:00", "apply", "alice@laptop")
_NUMBERS = itertools.count()


@pytest.fixture(scope="module")
def api(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Api]:
    with running(Path(tmp_path_factory.mktemp("promotion"))) as api:
        yield api


@dataclass
class Site:
    """A cluster with a standby whose permissions are the generated ones."""

    api: Api
    settings: WatchSettings
    standby: Entitled
    statements: tuple[str, ...]
    promotion: Promotion
    events: list[Event]
    started: list[tuple[str, ...]]
    root: Path
    name: str

    def state(self, ocid: str) -> str:
        return str(self.api.compute.get_instance(ocid).data.lifecycle_state)

    def holder(self) -> str:
        """The instance that has the volume, as the operator sees it."""
        return Promotion(self.settings, self.operator, self.events.append, self.root).holder()

    @property
    def operator(self) -> CloudAccess:
        return CloudAccess(self.api.config, self.api.endpoint, self.api.tenancy)

    @property
    def tag(self) -> LockTag:
        return LockTag(self.operator, "vcn", self.settings.lock)

    @property
    def untouched(self) -> bool:
        return self.state(self.settings.other) == "RUNNING" and self.holder() == self.settings.other


@pytest.fixture
def site(api: Api, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Site:
    number = next(_NUMBERS)
    vcn = api.vcn(f"10.{100 + number}.0.0/16", f"net{number}")
    subnet = api.subnet(vcn, f"10.{100 + number}.0.0/24")
    one, two = (str(api.launch(subnet, f"{name}-{number}").id) for name in ("one", "two"))
    details = models.CreateVolumeDetails(
        compartment_id=api.tenancy, availability_domain=api.domain, size_in_gbs=50, display_name="pair-state"
    )
    volume = str(api.block.create_volume(details).data.id)
    settings = replace(SETTINGS, own=two, other=one, volume=volume, lock=vcn.id, compartment_id=api.tenancy)
    (tmp_path / scope.FOLDER.lstrip("/")).mkdir(parents=True)
    (tmp_path / layout.PASSIVE.lstrip("/")).touch()
    standby = Entitled(api, two, tmp_path / "config", name=f"pair{number}")
    needed = iam.policies(
        replace_name(SPEC, f"pair{number}"), compartment_id=api.tenancy, controller_id=one, standby_id=two
    )
    standby.in_group(needed.matching_rule)
    statements = tuple(each.text for each in needed.controller)
    standby.allow(statements)
    events: list[Event] = []
    started: list[tuple[str, ...]] = []

    def call(argv: Any, *_text: str, **_how: Any) -> Any:
        started.append(tuple(argv))
        return programs.Completed(argv, 0, "Slurmctld(primary) at x is UP", "")

    monkeypatch.setattr(programs, "call", call)
    # The standby repeats an attempt whose request took too long; here each attempt is the only one.
    monkeypatch.setattr(promotion, "_REQUEST_SECONDS", PATIENCE_S)
    access = promotion._OneRequestEach(standby.settings, api.endpoint, api.tenancy)
    site = Site(
        api, settings, standby, statements, Promotion(settings, access, events.append, tmp_path), events, started,
        tmp_path, f"pair{number}",
    )  # fmt: skip
    operator = ServiceMove(site.operator, "pair", events.append, tags={})
    operator.give_volume(volume, one)
    site.settings = replace(settings, address=operator.give_address("", one))
    site.promotion._settings = site.settings
    events.clear()
    return site


def replace_name(spec: Any, name: str) -> Any:
    return spec.model_copy(update={"name": name})


def lost() -> bool:
    return True


def test_the_generated_permissions_are_enough_to_go_on(site: Site) -> None:
    settings = site.settings
    seen = (site.promotion.state(), site.promotion.holder(), site.promotion.held_by())
    assert seen == ("RUNNING", settings.other, "")
    assert site.promotion.carry_out(lost)
    assert site.state(settings.other) == "STOPPED"
    assert site.holder() == settings.own
    order = [(event.name.split()[0], event.status) for event in site.events]
    assert order == [("instance", "stopping"), ("volume", "detaching"), ("volume", "attaching"), ("address", "moving")]
    take_over, ping = site.started
    assert take_over[:3] == ("/usr/local/bin/gpucluster-agent", "state-volume", "take-over")
    assert take_over[-4:] == ("--address", settings.address, "--network", "10.0.0.0/16")
    assert ping == ("scontrol", "ping")
    assert site.tag.read() is None
    # Once more changes nothing: a program that was killed at the end begins again.
    site.events.clear()
    assert site.promotion.carry_out(lost)
    assert site.events == []


def test_a_slurmctld_that_is_slow_at_first_is_asked_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """slurmctld listens before it answers: a ping then waits for its answer until it is ended."""
    answers = ["", "Slurmctld(primary) at x is DOWN", "Slurmctld(primary) at x is UP"]

    def call(argv: Any, *_text: str, **_how: Any) -> Any:
        if printed := answers.pop(0):
            return programs.Completed(argv, 0, printed, "")
        raise Failed("scontrol did not answer within 30 s")

    monkeypatch.setattr(programs, "call", call)
    assert [promotion._slurm_answers() for _ in range(3)] == [False, False, True]


def test_with_a_tag_it_stops_what_carries_it_and_nothing_else(site: Site) -> None:
    """The permissions of `iam.tag`."""
    api, settings = site.api, site.settings
    tagged = replace_name(loads(f"{TEXT}iam: {{tag: Ops.Cluster}}\n", "cluster.yml"), site.name)
    needed = iam.policies(tagged, compartment_id=api.tenancy, controller_id=settings.other, standby_id=settings.own)
    site.standby.allow([each.text for each in needed.controller])
    with pytest.raises(LockedError, match="or a permission is missing"):
        site.promotion.held_by()
    with pytest.raises(LockedError, match="or a permission is missing"):
        site.promotion.carry_out(lost)
    assert site.untouched
    tags = {"defined_tags": {"Ops": {"Cluster": site.name}}}
    api.network.update_vcn(settings.lock, models.UpdateVcnDetails(**tags))
    with pytest.raises(CloudError, match="stopping pair-controller: the cloud answered 404"):
        site.promotion.carry_out(lost)
    assert site.untouched
    api.compute.update_instance(settings.other, models.UpdateInstanceDetails(**tags))
    assert site.promotion.carry_out(lost)
    assert site.holder() == settings.own


def test_a_run_of_an_operator_keeps_it_out(site: Site) -> None:
    site.tag.change(lambda _present: RUN)
    assert "apply by alice@laptop" in site.promotion.held_by()
    with pytest.raises(LockedError, match="apply by alice@laptop"):
        site.promotion.carry_out(lost)
    assert site.tag.read() == RUN
    assert site.untouched


def test_it_keeps_runs_of_operators_out_while_it_works(site: Site) -> None:
    seen: list[Holder | None] = []

    def look() -> bool:
        seen.append(site.tag.read())
        return False

    assert not site.promotion.carry_out(look)
    (held,) = seen
    assert held is not None
    assert (held.command, held.origin) == (COMMAND, "pair-standby")
    assert site.tag.read() is None
    assert site.untouched
    # One that was killed has left its lock, and knows it.
    site.tag.change(lambda _present: held)
    assert site.promotion.held_by() == ""
    assert not site.promotion.carry_out(lambda: False)


def test_a_lock_that_the_cloud_does_not_take_back_at_once_is_tried_again(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    change, refused = LockTag.change, [2]

    def sometimes(self: LockTag, decide: Any) -> None:
        present = self.read()
        if present is not None and refused[0]:
            refused[0] -= 1
            raise CloudError("the cloud can't be reached")
        change(self, decide)

    monkeypatch.setattr(LockTag, "change", sometimes)
    monkeypatch.setattr(promotion, "_POLL", 0.01)
    assert not site.promotion.carry_out(lambda: False)
    assert refused == [0]
    assert site.tag.read() is None


def test_a_network_that_is_gone_is_no_free_cluster(site: Site) -> None:
    """A destroy ends the hosts of a cluster; none must come back."""
    gone = Promotion(
        replace(site.settings, lock=site.settings.lock[:-6] + "aaaaaa"), site.operator, site.events.append, site.root
    )
    with pytest.raises(LockedError, match="its network is gone, or"):
        gone.carry_out(lost)
    assert site.untouched


@pytest.mark.parametrize(
    "permission", ["INSTANCE_POWER_ACTIONS", "VCN_UPDATE", "VOLUME_ATTACHMENT_INSPECT"]
)  # fmt: skip
def test_without_a_permission_nothing_moves(site: Site, permission: str) -> None:
    site.standby.allow([text.replace(permission, "NETWORK_SECURITY_GROUP_INSPECT") for text in site.statements])
    with pytest.raises(CloudError, match="404"):
        site.promotion.carry_out(lost)
    assert site.untouched
    assert site.started == []
    assert site.tag.read() is None


def test_a_fence_that_the_cloud_does_not_confirm_moves_nothing(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    """The instance is being stopped, and does not get there in time."""
    monkeypatch.setattr(promotion, "_FENCE_SECONDS", 0.0)
    power = site.promotion._power
    monkeypatch.setattr(power, "stop", lambda *_words, **_how: None)
    with pytest.raises(CloudError, match="does not confirm that pair-controller is stopped"):
        site.promotion.carry_out(lost)
    assert site.untouched


def test_the_address_of_a_host_that_is_gone_is_made_again(site: Site) -> None:
    site.api.compute.terminate_instance(site.settings.other)
    site.api.wait(site.api.compute.get_instance, site.settings.other, "TERMINATED")
    assert site.promotion.carry_out(lost)
    listed = site.api.network.list_private_ips(ip_address=site.settings.address, subnet_id=_subnet(site)).data
    assert [each.freeform_tags for each in listed] == [{"gpucluster": "pair"}]


def _subnet(site: Site) -> str:
    (attachment,) = site.api.compute.list_vnic_attachments(site.api.tenancy, instance_id=site.settings.own).data
    return str(attachment.subnet_id)


def test_services_that_do_not_start_are_an_error_and_the_next_attempt_goes_on(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    good = programs.call
    monkeypatch.setattr(programs, "call", lambda argv, **_how: programs.Completed(argv, 1, "", "no\nmariadb"))
    with pytest.raises(Failed, match="the services do not start: no mariadb"):
        site.promotion.carry_out(lost)
    assert site.holder() == site.settings.own
    assert site.tag.read() is None
    monkeypatch.setattr(programs, "call", good)
    assert site.promotion.carry_out(lost)


def test_the_loop_goes_on_with_the_real_cloud(site: Site) -> None:
    now = [0.0]
    probes, sees = [True], [False]
    watcher = Watcher(
        site.settings, site.promotion, lambda _s: {"ssh": probes[0]}, lambda _s: {"compute-1": sees[0]},
        lambda: now[0], lambda: 1e9 + now[0], lambda _s: None, site.root,
    )  # fmt: skip

    def decisions(number: int) -> list[Decision]:
        found = []
        for _ in range(number):
            now[0] += ROUND_SECONDS
            found.append(watcher.round().decision)
        return found

    assert decisions(1) == [Decision.WATCH]
    probes[0], sees[0] = False, True
    assert decisions(5)[-1] is Decision.WAIT
    assert site.untouched
    site.tag.change(lambda _present: RUN)
    sees[0] = False
    assert decisions(1) == [Decision.WAIT]
    assert site.untouched
    site.tag.change(lambda _present: None)
    assert decisions(1) == [Decision.GO_ON]
    assert site.holder() == site.settings.own
