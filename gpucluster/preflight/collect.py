"""Collects the facts from this machine and from the cloud, concurrently. It decides and changes nothing."""

from __future__ import annotations

import time
from collections.abc import Callable, Hashable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from concurrent.futures import TimeoutError as FutureTimeout
from dataclasses import replace
from email.utils import parsedate_to_datetime
from typing import Any, TypeVar

from gpucluster.cloud.client import CloudAccess, refusals
from gpucluster.cloud.providers import CloudProvider
from gpucluster.cloud.providers.interface import MachineGpus
from gpucluster.errors import CloudError, GpuClusterError
from gpucluster.handover.kubernetes import has_kubernetes_engine
from gpucluster.preflight import requirements
from gpucluster.preflight.facts import Facts, FirstCall, FoundImage, Unknown
from gpucluster.preflight.queries import local
from gpucluster.preflight.queries.client import QueryClient, timeout
from gpucluster.preflight.queries.cloud import CloudQueries
from gpucluster.spec import ClusterSpec

T = TypeVar("T")
K = TypeVar("K", bound=Hashable)

_WORKERS = 8
# Seconds for name resolution beside the first call.
_RESOLUTION = 2.0
# All queries after the first call together may take as long as this number of requests, one after the other.
_REQUESTS = 7


def collect(spec: ClusterSpec, cloud: CloudProvider, outputs: Mapping[str, Any] | None = None) -> Facts:
    """Read every fact that `evaluate` needs. It never raises because a fact can't be read.

    Args:
        outputs: Terraform's outputs, if a part of this cluster exists: `{"cluster": {...}}`.

    Raises:
        GpuClusterError: the cloud's configuration can't be read.
    """
    access = cloud.access()
    workers = ThreadPoolExecutor(max_workers=_WORKERS, thread_name_prefix="preflight")
    try:
        collector = _Collector(spec, access, workers, outputs or {})
        facts = replace(collector.facts(), machine_gpus=_machine_gpus(cloud) if spec.cloud.real_gpus else None)
        return replace(facts, images=collector.stand_ins(facts.images)) if cloud.hardware_emulated else facts
    finally:
        # Queries that ran out of time end by themselves; nothing waits for them.
        workers.shutdown(wait=False, cancel_futures=True)


def _machine_gpus(cloud: CloudProvider) -> MachineGpus | Unknown | None:
    try:
        return cloud.machine_gpus()
    except GpuClusterError as error:
        return Unknown("gpus", "the GPUs of this machine", error.what, action=error.hint)


class _Collector:
    def __init__(
        self, spec: ClusterSpec, access: CloudAccess, workers: ThreadPoolExecutor, outputs: Mapping[str, Any]
    ) -> None:
        self._spec = spec
        self._access = access
        self._workers = workers
        self._outputs = outputs
        self._client = QueryClient(access)
        self._queries = CloudQueries(self._client, spec.name, _kept_images(outputs))
        self._first_timeout = timeout(access) + _RESOLUTION
        self._total_timeout = timeout(access) * _REQUESTS
        self._until = time.monotonic() + self._first_timeout + self._total_timeout

    def facts(self) -> Facts:
        """The local facts and the first call; if that is authenticated, all the others."""
        ssh = self._begin(local.ssh_pair, self._spec)
        terraform = self._begin(local.terraform, self._spec)
        key = local.key_file(self._access.config) if "key_file" in self._access.config else None
        call, regions, home = (None, None, "") if key and key.problem else self._first_call()
        facts = Facts(
            key_file=key, first_call=call, regions=regions, home_region=home,
            mount_targets=_mount_targets(self._spec, self._outputs),
        )  # fmt: skip
        if call is not None and call.authenticated:
            facts = self._cloud_facts(facts)
        return replace(facts, ssh=self._end(ssh, "ssh"), terraform=terraform.result())

    def _first_call(self) -> _Subscriptions:
        """The first signed call. If the cluster's region refuses it, the profile's region may show why."""
        call, regions, home = self._subscriptions(self._client)
        other, region = self._access.profile_region, self._access.config["region"]
        if not call.authenticated and self._access.endpoint is None and other not in ("", region):
            elsewhere = replace(self._access, config={**self._access.config, "region": other})
            second, regions, home = self._subscriptions(QueryClient(elsewhere))
            call = replace(call, skew=call.skew if call.skew is not None else second.skew)
        return call, regions, home

    def _subscriptions(self, client: QueryClient) -> _Subscriptions:
        future = self._workers.submit(_subscriptions, client)
        try:
            return future.result(timeout=self._first_timeout)
        except FutureTimeout:
            return FirstCall(_place(client.access), 0, f"no answer within {self._first_timeout:.0f} s"), None, ""

    def _cloud_facts(self, facts: Facts) -> Facts:
        spec, queries = self._spec, self._queries
        network = spec.network
        subnet_ids = {"public": network.public_subnet_id, "private": network.private_subnet_id}
        domains_future = self._begin(queries.domains)
        compartment = self._begin(queries.compartment)
        instances = self._begin(queries.instances)
        strangers = self._begin(queries.strangers) if requirements.reaches_all(spec) else None
        vcns = self._begin(queries.vcns)
        vcn = self._begin(queries.vcn, network.vcn_id) if network.vcn_id else None
        subnets = {name: self._begin(queries.subnet, ocid) for name, ocid in subnet_ids.items() if ocid}
        existing = spec.storage.existing_file_systems
        file_systems = {key: self._begin(queries.file_system, ocid) for key, ocid in existing.items()}
        engine = self._begin(queries.kubernetes_engine) if has_kubernetes_engine(spec) else None
        images = self._images()
        # The queries below need the names of the availability domains.
        domains = self._end(domains_future, "domains")
        known = () if isinstance(domains, Unknown) else domains
        machines = [item for item in requirements.machines(spec, known) if item.domain in known]
        shapes = {domain: self._begin(queries.shapes, domain) for domain in known}
        reserved = {item.name: item.reservation for item in machines if item.reservation}
        reservations = {name: self._begin(queries.reservation, ocid) for name, ocid in reserved.items()}
        racks = {item.name: item.memory_fabric for item in machines if item.memory_fabric}
        fabrics = {name: self._begin(queries.memory_fabric, ocid) for name, ocid in racks.items()}
        limits = {key: self._begin(queries.limit, key) for key in self._limits(machines)}
        bastions = network.access == "bastion"
        created = self._begin(queries.created, machines[0].domain, bastions=bastions) if machines else None
        largest = {(item.domain, item.shape): item for item in sorted(machines, key=lambda item: item.ocpus)}
        tenancy = str(self._access.config["tenancy"])
        capacity = {
            key: self._begin(queries.capacity, item, tenancy)
            for key, item in largest.items()
            if not (item.reservation or item.memory_fabric)
        }
        return replace(
            facts,
            compartment=self._end(compartment, "compartment"),
            domains=domains,
            shapes=self._all(shapes, "shapes"),
            instances=self._end(instances, "limits"),
            strangers=self._end(strangers, "compartment") if strangers else None,
            limits=self._all(limits, "limits"),
            capacity=self._all(capacity, "capacity"),
            images=self._all(images, "image"),
            reservations=self._all(reservations, "reservation"),
            memory_fabrics=self._all(fabrics, "memory fabric"),
            kubernetes_engine=self._end(engine, "kubernetes") if engine else None,
            created=self._end(created, "limits") if created else None,
            vcns=self._end(vcns, "overlap"),
            vcn=self._end(vcn, "network") if vcn else None,
            subnets=self._all(subnets, "network"),
            file_systems=self._all(file_systems, "storage"),
        )

    def stand_ins(self, images: Mapping[str, FoundImage | Unknown]) -> dict[str, FoundImage | Unknown]:
        """The images of the local cloud with what they really contain, where that is not what their name states."""
        ids = {image.id for image in images.values() if isinstance(image, FoundImage) and image.id}
        futures = {ocid: self._begin(self._queries.stand_in, ocid) for ocid in ids}
        contents = self._all(futures, "image")
        return {
            name: replace(image, stand_in=contents[image.id])
            if isinstance(image, FoundImage) and isinstance(contents.get(image.id), str)
            else image
            for name, image in images.items()
        }

    def _images(self) -> dict[str, Future[Any]]:
        """Machines with the same image and shape share one query."""
        futures: dict[Any, Future[Any]] = {}
        by_machine = {}
        for machine in requirements.machines(self._spec):
            key = (machine.image, machine.shape)
            if key not in futures:
                futures[key] = self._begin(self._queries.image, machine)
            by_machine[machine.name] = futures[key]
        return by_machine

    def _limits(self, machines: list[requirements.MachineGroup]) -> list[Any]:
        domain = machines[0].domain if machines else ""
        return [*requirements.demands(machines, ()), *requirements.counted_resources(self._spec, domain)]

    def _begin(self, call: Callable[..., T], *args: Any, **more: Any) -> Future[T]:
        return self._workers.submit(call, *args, **more)

    def _end(self, future: Future[Any], check: str) -> Any:
        try:
            return future.result(timeout=max(self._until - time.monotonic(), 0.01))
        except FutureTimeout:
            reason = f"no answer within {self._total_timeout:.0f} s"
            return Unknown(check, "everything in time", reason, action="Try again later")

    def _all(self, futures: Mapping[K, Future[Any]], check: str) -> dict[K, Any]:
        return {key: self._end(item, check) for key, item in futures.items()}


#: The call itself, the regions, and the home region.
_Subscriptions = tuple[FirstCall, tuple[str, ...] | Unknown | None, str]
_NOT_THE_CLOUD = "something other than the cloud answered, such as a proxy"


def _subscriptions(client: QueryClient) -> _Subscriptions:
    """The regions of the tenancy and its home region; any answer but 401 means that the signature was accepted."""
    place = _place(client.access)
    try:
        identity = client.client("identity", "IdentityClient")
        began = time.time()
        with refusals("query"):
            answer = identity.list_region_subscriptions(str(client.access.config["tenancy"]))
        skew = _skew(str(answer.headers.get("date") or ""), began, time.time())
    except CloudError as error:
        return _failed(place, error, _skew(error.date, began, time.time()))
    except Exception as error:
        # A configuration that the SDK refuses, or an answer that does not come from OCI.
        return FirstCall(place, 0, f"{type(error).__name__}: {error}"[:300]), None, ""
    regions = tuple(item.region_name for item in answer.data)
    if not all(isinstance(name, str) for name in regions):
        return FirstCall(place, 0, f"{_NOT_THE_CLOUD} with a page of its own"), None, ""
    home = next((item.region_name for item in answer.data if item.is_home_region), "")
    return FirstCall(place, int(answer.status), skew=skew), regions, home


def _failed(place: str, error: CloudError, skew: float | None) -> _Subscriptions:
    message = error.what.removeprefix("query: ")
    if error.status and not error.code:
        return FirstCall(place, 0, f"{_NOT_THE_CLOUD}: {message}"), None, ""
    call = FirstCall(place, error.status, message, skew)
    if not call.authenticated:
        return call, None, ""
    action = "An administrator can permit it: Allow group <yours> to inspect tenancies in tenancy"
    return call, Unknown("region", "the regions of the tenancy", message, error.status, action), ""


def _place(access: CloudAccess) -> str:
    return access.endpoint or f"region {access.config['region']}"


def _skew(date: str, began: float, ended: float) -> float | None:
    """Seconds by which our clock is ahead. The header counts whole seconds, so half a second is added."""
    try:
        theirs = parsedate_to_datetime(date).timestamp() + 0.5
    except (TypeError, ValueError):
        return None
    return (began + ended) / 2 - theirs


def _kept_images(outputs: Mapping[str, Any]) -> frozenset[str]:
    """The OCIDs of the images that Terraform has selected for the pools of this cluster, and keeps."""
    cluster = outputs.get("cluster")
    pools = cluster.get("pools") if isinstance(cluster, Mapping) else None
    entries = pools.values() if isinstance(pools, Mapping) else ()
    return frozenset(str(pool["image_id"]) for pool in entries if isinstance(pool, Mapping) and pool.get("image_id"))


def _mount_targets(spec: ClusterSpec, outputs: Mapping[str, Any]) -> tuple[str, ...]:
    """The addresses of this cluster's mount targets, from Terraform's outputs."""
    cluster = outputs.get("cluster")
    if not isinstance(cluster, Mapping):
        return ()
    shares = [cluster.get("home") or {}, *(cluster.get("shares") or {}).values()]
    servers = {spec.storage.home.server, *(share.server for share in spec.storage.shares.values())}
    addresses = [share.get("mount_target_ip") for share in shares]
    # A mount target exports several shares.
    return tuple(dict.fromkeys(str(each) for each in addresses if each and each not in servers))
