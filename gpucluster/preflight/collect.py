"""Looks at this machine and at the cloud, everything at once. Nothing here judges, and nothing changes anything."""

from __future__ import annotations

import time
from collections.abc import Callable, Hashable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from concurrent.futures import TimeoutError as NotInTime
from dataclasses import replace
from email.utils import parsedate_to_datetime
from typing import Any, TypeVar

from gpucluster.cloud.client import Access, refusals
from gpucluster.cloud.providers import Cloud
from gpucluster.errors import CloudError
from gpucluster.preflight import requirements
from gpucluster.preflight.facts import Answer, Facts, Image, Unknown
from gpucluster.preflight.queries import local
from gpucluster.preflight.queries.client import PATIENCE, Asker
from gpucluster.preflight.queries.cloud import Reads
from gpucluster.spec import LOCAL_IMAGE, ClusterSpec

T = TypeVar("T")
K = TypeVar("K", bound=Hashable)

_WORKERS = 8
# Seconds for the first call, the search for the cloud's name included, and for all that follows.
_FIRST = PATIENCE + 2.0
_TOGETHER = 40.0


def look(spec: ClusterSpec, cloud: Cloud, outputs: Mapping[str, Any] | None = None) -> Facts:
    """Ask everything that `judge` wants to know. Never raises for what can't be asked.

    Args:
        outputs: Terraform's, where something of this cluster stands: `{"cluster": {...}}`.

    Raises:
        GpuClusterError: the cloud's configuration itself can't be read.
    """
    access = cloud.access()
    workers = ThreadPoolExecutor(max_workers=_WORKERS, thread_name_prefix="preflight")
    try:
        facts = _Look(spec, access, workers, outputs or {}).everything()
        return replace(facts, images=_stand_ins(facts.images)) if cloud.hardware_emulated else facts
    finally:
        # Whoever still waits for an answer is not waited for.
        workers.shutdown(wait=False, cancel_futures=True)


class _Look:
    def __init__(
        self, spec: ClusterSpec, access: Access, workers: ThreadPoolExecutor, outputs: Mapping[str, Any]
    ) -> None:
        self._spec = spec
        self._access = access
        self._workers = workers
        self._outputs = outputs
        self._asker = Asker(access)
        self._reads = Reads(self._asker, spec.name)
        self._until = time.monotonic() + _FIRST + _TOGETHER

    def everything(self) -> Facts:
        """First what needs no network, and one call; if that is believed, all the rest."""
        ssh = self._begin(local.ssh_pair, self._spec)
        terraform = self._begin(local.terraform, self._spec)
        key = local.key_file(self._access.config)
        answer, regions, home = (None, None, "") if key.problem else self._knock()
        facts = Facts(
            key_file=key, answer=answer, regions=regions, home_region=home, systems=local.systems(),
            mount_target=_mount_target(self._outputs),
        )  # fmt: skip
        if answer is not None and answer.believed:
            facts = self._surroundings(facts)
        return replace(facts, ssh=self._end(ssh, "ssh"), terraform=terraform.result())

    def _knock(self) -> _Knock:
        """The first signed call. Where the region of the cluster does not know us, that of the profile may say why."""
        answer, regions, home = self._subscriptions(self._asker)
        other = self._access.profile_region
        if not answer.believed and self._access.endpoint is None and other not in ("", self._access.config["region"]):
            elsewhere = replace(self._access, config={**self._access.config, "region": other})
            said, regions, home = self._subscriptions(Asker(elsewhere))
            answer = replace(answer, skew=answer.skew if answer.skew is not None else said.skew)
        return answer, regions, home

    def _subscriptions(self, asker: Asker) -> _Knock:
        waited = self._workers.submit(_subscriptions, asker)
        try:
            return waited.result(timeout=_FIRST)
        except NotInTime:
            return Answer(_place(asker.access), 0, f"no answer within {_FIRST:.0f} s"), None, ""

    def _surroundings(self, facts: Facts) -> Facts:
        spec, reads = self._spec, self._reads
        network, home = spec.network, spec.storage.home
        subnets = {"public": network.public_subnet_id, "private": network.private_subnet_id}
        asked_domains = self._begin(reads.domains)
        compartment = self._begin(reads.compartment)
        standing = self._begin(reads.standing)
        vcns = self._begin(reads.vcns)
        vcn = self._begin(reads.vcn, network.vcn_id) if network.vcn_id else None
        found = {name: self._begin(reads.subnet, ocid) for name, ocid in subnets.items() if ocid}
        files = self._begin(reads.file_system, home.file_system_id) if home.file_system_id else None
        images = self._images()
        domains = self._end(asked_domains, "domains")
        offered = () if isinstance(domains, Unknown) else domains
        wanted = [one for one in requirements.machines(spec, offered) if one.domain in offered]
        shapes = {domain: self._begin(reads.shapes, domain) for domain in offered}
        reserved = {one.name: one.reservation for one in wanted if one.reservation}
        reservations = {name: self._begin(reads.reservation, ocid) for name, ocid in reserved.items()}
        limits = {key: self._begin(reads.limit, key) for key in self._limits(wanted)}
        made = self._begin(reads.made, wanted[0].domain, bastions=network.access == "bastion") if wanted else None
        largest = {(one.domain, one.shape): one for one in sorted(wanted, key=lambda one: one.ocpus)}
        tenancy = str(self._access.config["tenancy"])
        capacity = {
            key: self._begin(reads.capacity, one, tenancy) for key, one in largest.items() if not one.reservation
        }
        return replace(
            facts,
            compartment=self._end(compartment, "compartment"),
            domains=domains,
            shapes=self._all(shapes, "shapes"),
            standing=self._end(standing, "limits"),
            limits=self._all(limits, "limits"),
            capacity=self._all(capacity, "capacity"),
            images=self._all(images, "image"),
            reservations=self._all(reservations, "reservation"),
            made=self._end(made, "limits") if made else None,
            vcns=self._end(vcns, "overlap"),
            vcn=self._end(vcn, "network") if vcn else None,
            subnets=self._all(found, "network"),
            file_system=self._end(files, "storage") if files else None,
        )

    def _images(self) -> dict[str, Future[Any]]:
        """Machines of the same image and shape share one question."""
        asked: dict[Any, Future[Any]] = {}
        found = {}
        for machine in requirements.machines(self._spec):
            key = (machine.image, machine.shape)
            if key not in asked:
                asked[key] = self._begin(self._reads.image, machine)
            found[machine.name] = asked[key]
        return found

    def _limits(self, wanted: list[requirements.Machine]) -> list[Any]:
        domain = wanted[0].domain if wanted else ""
        return [*requirements.demands(wanted, ()), *requirements.things(self._spec, domain)]

    def _begin(self, call: Callable[..., T], *args: Any, **more: Any) -> Future[T]:
        return self._workers.submit(call, *args, **more)

    def _end(self, waited: Future[Any], check: str) -> Any:
        try:
            return waited.result(timeout=max(self._until - time.monotonic(), 0.01))
        except NotInTime:
            return Unknown(check, "everything in time", f"no answer within {_TOGETHER:.0f} s", action="Try again later")

    def _all(self, waited: Mapping[K, Future[Any]], check: str) -> dict[K, Any]:
        return {key: self._end(one, check) for key, one in waited.items()}


_Knock = tuple[Answer, tuple[str, ...] | Unknown | None, str]
_STRANGER = "something else answered, such as a proxy"


def _subscriptions(asker: Asker) -> _Knock:
    """The regions of the tenancy, and which is its home; any answer but 401 says that our signature is believed."""
    place = _place(asker.access)
    try:
        client = asker.client("identity", "IdentityClient")
        began = time.time()
        with refusals("asking"):
            said = client.list_region_subscriptions(str(asker.access.config["tenancy"]))
        skew = _skew(str(said.headers.get("date") or ""), began, time.time())
    except CloudError as error:
        return _not_told(place, error, _skew(error.date, began, time.time()))
    except Exception as error:
        # A configuration that the SDK refuses, or an answer that is not OCI's.
        return Answer(place, 0, f"{type(error).__name__}: {error}"[:300]), None, ""
    found = tuple(one.region_name for one in said.data)
    if not all(isinstance(name, str) for name in found):
        return Answer(place, 0, f"{_STRANGER} with a page of its own"), None, ""
    home = next((one.region_name for one in said.data if one.is_home_region), "")
    return Answer(place, int(said.status), skew=skew), found, home


def _not_told(place: str, error: CloudError, skew: float | None) -> _Knock:
    message = error.what.removeprefix("asking: ")
    if error.status and not error.code:
        return Answer(place, 0, f"{_STRANGER}: {message}"), None, ""
    answer = Answer(place, error.status, message, skew)
    if not answer.believed:
        return answer, None, ""
    action = "An administrator can let you see them: Allow group <yours> to inspect tenancies in tenancy"
    return answer, Unknown("region", "the regions of the tenancy", message, error.status, action), ""


def _place(access: Access) -> str:
    return access.endpoint or f"region {access.config['region']}"


def _skew(date: str, began: float, ended: float) -> float | None:
    """By how many seconds our clock is ahead. The header counts whole seconds, so half a one is added."""
    try:
        theirs = parsedate_to_datetime(date).timestamp() + 0.5
    except (TypeError, ValueError):
        return None
    return (began + ended) / 2 - theirs


def _stand_ins(images: Mapping[str, Image | Unknown]) -> dict[str, Image | Unknown]:
    """Whatever an image of the local cloud is called, one and the same boots."""
    real = (LOCAL_IMAGE["operating_system"], LOCAL_IMAGE["version"])
    return {
        name: replace(image, stand_in=" ".join(real))
        if isinstance(image, Image) and (image.system, image.version) != real
        else image
        for name, image in images.items()
    }


def _mount_target(outputs: Mapping[str, Any]) -> str:
    """The address of this cluster's mount target, as Terraform left it."""
    cluster = outputs.get("cluster")
    home = cluster.get("home") if isinstance(cluster, Mapping) else None
    return str(home.get("mount_target_ip") or "") if isinstance(home, Mapping) else ""
