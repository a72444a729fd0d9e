"""Queries to the cloud, one method each. They only read: GET, and the capacity report, a POST that changes nothing."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

from gpucluster import shapes
from gpucluster.cloud.client import all_pages, model
from gpucluster.oci import tags
from gpucluster.oci.image_names import VersionFilter, version_filter
from gpucluster.oci.states import GONE
from gpucluster.preflight.facts import (
    Capacity,
    Compartment,
    Created,
    ExistingFileSystem,
    ExistingInstance,
    FoundImage,
    IngressRule,
    KubernetesEngine,
    Limit,
    LimitKey,
    MemoryFabric,
    Reservation,
    Subnet,
    Unknown,
    Vcn,
)
from gpucluster.preflight.queries.client import QueryClient
from gpucluster.preflight.requirements import MachineGroup


class CloudQueries:
    """Queries about one cluster and its surroundings.

    Args:
        cluster: its name, by which the cluster's own resources are tagged.
        kept_images: OCIDs of the images that its pools have already.
    """

    def __init__(self, client: QueryClient, cluster: str, kept_images: Collection[str] = ()) -> None:
        self._client = client
        self._cluster = cluster
        self._kept_images = kept_images
        self._compartment = client.access.compartment_id
        self._here = f"in compartment id {self._compartment}"

    def compartment(self) -> Compartment | Unknown:
        """The compartment that everything is created in."""

        def read() -> Compartment:
            result = self._identity.get_compartment(self._compartment).data
            return Compartment(str(result.name), str(result.lifecycle_state))

        what, allow = f"the compartment {self._compartment}", "inspect compartments in tenancy"
        return self._client.query("compartment", what, allow, read)

    def domains(self) -> tuple[str, ...] | Unknown:
        """The availability domains of the region."""

        def read() -> tuple[str, ...]:
            return tuple(str(item.name) for item in self._identity.list_availability_domains(self._compartment).data)

        return self._client.query("domains", "the availability domains", "inspect compartments in tenancy", read)

    def shapes(self, domain: str) -> frozenset[str] | Unknown:
        """The shapes that are offered in a domain."""

        def read() -> frozenset[str]:
            listed = all_pages(self._compute.list_shapes, self._compartment, availability_domain=domain)
            return frozenset(str(item.shape) for item in listed)

        return self._client.query("shapes", f"the shapes of {domain}", f"inspect instances {self._here}", read)

    def instances(self) -> tuple[ExistingInstance, ...] | Unknown:
        """The existing instances of this cluster."""

        def read() -> tuple[ExistingInstance, ...]:
            return tuple(
                _instance(item)
                for item in self._listed()
                if tags.of_cluster(item.freeform_tags, self._cluster) and item.lifecycle_state not in GONE
            )

        return self._client.query("limits", "which instances exist", f"read instances {self._here}", read)

    def strangers(self) -> int | Unknown:
        """The number of instances that are not of this cluster, in the compartment of its elastic nodes."""

        def read() -> int:
            place = self._client.access.elastic_compartment(self._identity)
            if not place:
                return 0  # it is not created yet
            listed = all_pages(self._compute.list_instances, place)
            others = (item for item in listed if not tags.of_cluster(item.freeform_tags, self._cluster))
            return sum(item.lifecycle_state not in GONE for item in others)

        return self._client.query("compartment", "which instances exist", f"read instances {self._here}", read)

    def _listed(self) -> list[Any]:
        """All instances of the cluster's compartments."""
        places = self._client.access.compartments(self._identity)
        return [item for place in places for item in all_pages(self._compute.list_instances, place)]

    def limit(self, key: LimitKey) -> Limit | Unknown:
        """What is left of a service limit."""
        service, name, domain = key

        def read() -> Limit:
            where = {"availability_domain": domain} if domain else {}
            client = self._client.client("limits", "LimitsClient")
            result = client.get_resource_availability(service, name, self._compartment, **where).data
            return Limit(result.available, result.used, result.effective_quota_value)

        what = f"the limit {name}" + (f" in {domain}" if domain else "")
        result = self._client.query("limits", what, "read resource-availability in tenancy", read)
        if isinstance(result, Unknown) and result.refused:
            names = f"oci limits value list --service-name {service} --compartment-id <the tenancy> --all"
            return replace(result, action=f"{result.action}. Or the limit has another name in this tenancy: {names}")
        return result

    def kubernetes_engine(self) -> KubernetesEngine | Unknown:
        """The releases that Kubernetes Engine offers, and that of this cluster's control plane."""

        def read() -> KubernetesEngine:
            client = self._client.client("container_engine", "ContainerEngineClient")
            offered = client.get_cluster_options("all", compartment_id=self._compartment).data.kubernetes_versions
            ours = [
                item
                for item in all_pages(client.list_clusters, self._compartment, name=self._cluster)
                if tags.of_cluster(item.freeform_tags, self._cluster) and item.lifecycle_state not in GONE
            ]
            return KubernetesEngine(
                tuple(str(version) for version in offered), str(ours[0].kubernetes_version) if ours else ""
            )

        what = "which releases Kubernetes Engine offers"
        return self._client.query("kubernetes", what, f"read clusters {self._here}", read)

    def capacity(self, machine: MachineGroup, tenancy: str) -> Capacity | Unknown:
        """How many hosts are free for a machine."""

        def read() -> Capacity:
            size = model(
                "core", "CapacityReportInstanceShapeConfig", ocpus=machine.ocpus, memory_in_gbs=machine.memory_gb
            )
            availability = model(
                "core",
                "CreateCapacityReportShapeAvailabilityDetails",
                instance_shape=machine.shape,
                instance_shape_config=size if machine.ocpus else None,
            )
            body = model(
                "core",
                "CreateComputeCapacityReportDetails",
                compartment_id=tenancy,
                availability_domain=machine.domain,
                shape_availabilities=[availability],
            )
            result = self._compute.create_compute_capacity_report(body).data.shape_availabilities[0]
            return Capacity(str(result.availability_status), result.available_count)

        what = f"how many hosts are free for {machine.place}"
        return self._client.query("capacity", what, "manage compute-capacity-reports in tenancy", read)

    def reservation(self, ocid: str) -> Reservation | Unknown:
        """A capacity reservation."""

        def read() -> Reservation:
            result = self._compute.get_compute_capacity_reservation(ocid).data
            left: dict[str, int] = {}
            for item in result.instance_reservation_configs or []:
                free = int(item.reserved_count or 0) - int(item.used_count or 0)
                left[str(item.instance_shape)] = left.get(str(item.instance_shape), 0) + free
            return Reservation(str(result.lifecycle_state), str(result.availability_domain), left)

        what, allow = f"the capacity reservation {ocid}", f"read compute-capacity-reservations {self._here}"
        return self._client.query("reservation", what, allow, read)

    def memory_fabric(self, ocid: str) -> MemoryFabric | Unknown:
        """A GPU memory fabric, which is in the tenancy's root compartment."""

        def read() -> MemoryFabric:
            result = self._compute.get_compute_gpu_memory_fabric(ocid).data
            available, total = int(result.available_host_count or 0), int(result.total_host_count or 0)
            return MemoryFabric(str(result.lifecycle_state), str(result.fabric_health), available, total)

        what, allow = f"the GPU memory fabric {ocid}", "use compute-gpu-memory-fabrics in tenancy"
        return self._client.query("memory fabric", what, allow, read)

    def image(self, machine: MachineGroup) -> FoundImage | Unknown:
        """The image of a machine."""
        image = machine.image
        read: Callable[[], FoundImage] = partial(self._image_by_name, machine)
        what, allow = "the images", f"read instance-images {self._here}"
        if image.listing:
            read = partial(self._listed_image, image.listing, image.listing_version, machine.shape)
            what, allow = f"the marketplace listing {image.listing}", "read app-catalog-listing in tenancy"
        elif image.ocid:
            read = partial(self._image_by_id, image.ocid, machine.shape)
            what = f"the image {image.ocid}"
        return self._client.query("image", what, allow, read)

    def stand_in(self, ocid: str) -> str | Unknown:
        """What an image of the local cloud contains, if that is not what its name states; else empty."""

        def read() -> str:
            image = self._compute.get_image(ocid).data
            contains = str((image.freeform_tags or {}).get(tags.CONTAINS, ""))
            # "Canonical Ubuntu 24.04" contains "Ubuntu 24.04".
            return "" if f"{image.operating_system} {image.operating_system_version}".endswith(contains) else contains

        return self._client.query("image", f"the image {ocid}", f"read instance-images {self._here}", read)

    def _image_by_id(self, ocid: str, shape: str) -> FoundImage:
        image = self._compute.get_image(ocid).data
        entries = self._client.query(
            "image",
            f"the compatible shapes of the image {ocid}",
            f"read instance-images {self._here}",
            lambda: all_pages(self._compute.list_image_shape_compatibility_entries, ocid),
        )
        fits = None if isinstance(entries, Unknown) else any(item.shape == shape for item in entries)
        return _image(image, fits)

    def _image_by_name(self, machine: MachineGroup) -> FoundImage:
        image = machine.image
        criteria = {
            "operating_system": image.operating_system,
            "operating_system_version": image.version,
            "display_name": image.name,
        }
        filters: Mapping[str, Any] = {name: value for name, value in criteria.items() if value}
        order = {"sort_by": "TIMECREATED", "sort_order": "DESC", "lifecycle_state": "AVAILABLE"}
        for fits, shape in ((True, {"shape": machine.shape}), (False, {})):
            listed = all_pages(self._compute.list_images, self._compartment, **filters, **order, **shape)
            # The same choice as Terraform's (terraform/cluster/images.tf).
            result = [item for item in listed if (_by_its_name(item) if image.name else not item.compartment_id)]
            if result:
                return _image(result[0], fits)
        return self._kept_image(image.name) if image.name else FoundImage("")

    def _kept_image(self, name: str) -> FoundImage:
        """The image of that name that the cluster has already: Terraform keeps it when the list no longer shows it."""
        ours = [item.image_id for item in self._listed() if tags.of_cluster(item.freeform_tags, self._cluster)]
        for ocid in dict.fromkeys((*self._kept_images, *filter(None, ours))):
            image = self._compute.get_image(ocid).data
            if image.display_name == name:
                return _image(image, None)
        return FoundImage("")

    def _listed_image(self, name: str, version: str | None, shape: str) -> FoundImage:
        listing = self._listing(name)
        if not listing:
            return FoundImage("")
        listed = all_pages(self._compute.list_app_catalog_listing_resource_versions, listing)
        versions = tuple(str(item.listing_resource_version) for item in listed)
        chosen = self._chosen_version(listing, listed, version_filter(version, amd=shapes.get(shape).has_amd_gpus))
        if not chosen:
            return FoundImage("", listing=listing, listing_versions=versions)
        item = self._compute.get_app_catalog_listing_resource_version(listing, chosen).data
        fits = shape in item.compatible_shapes if item.compatible_shapes else None
        terms = () if self._subscribed(listing, chosen) else self._terms(listing, chosen)
        return FoundImage(
            str(item.listing_resource_id), name, fits=fits, listing=listing, listing_version=chosen,
            listing_versions=versions, terms=terms,
        )  # fmt: skip

    def _chosen_version(self, listing: str, listed: list[Any], version_filter: VersionFilter) -> str:
        """The newest version that fits; if none does, one that the compartment subscribed to: Terraform keeps it."""
        fitting = [item for item in listed if version_filter.fits(str(item.listing_resource_version))]
        if not fitting:
            fitting = [
                item
                for item in all_pages(
                    self._compute.list_app_catalog_subscriptions, self._compartment, listing_id=listing
                )
                if version_filter.fits(str(item.listing_resource_version))
            ]
            return str(fitting[0].listing_resource_version) if fitting else ""
        return str(max(fitting, key=lambda item: item.time_published).listing_resource_version)

    def _listing(self, name: str) -> str:
        if name.startswith("ocid1."):
            return str(self._compute.get_app_catalog_listing(name).data.listing_id)
        result = all_pages(self._compute.list_app_catalog_listings, display_name=name)
        return next((str(listing.listing_id) for listing in result if listing.display_name == name), "")

    def _subscribed(self, listing: str, version: str) -> bool:
        result = all_pages(self._compute.list_app_catalog_subscriptions, self._compartment, listing_id=listing)
        return any(item.listing_resource_version == version for item in result)

    def _terms(self, listing: str, version: str) -> tuple[str, ...]:
        result = self._compute.get_app_catalog_listing_agreements(listing, version).data
        return tuple(str(link) for link in (result.oracle_terms_of_use_link, result.eula_link) if link)

    def vcns(self) -> tuple[Vcn, ...] | Unknown:
        """The networks of the compartment."""

        def read() -> tuple[Vcn, ...]:
            listed = all_pages(self._network.list_vcns, self._compartment)
            return tuple(self._vcn(item) for item in listed if item.lifecycle_state not in GONE)

        return self._client.query("overlap", "the networks of the compartment", f"read vcns {self._here}", read)

    def vcn(self, ocid: str) -> Vcn | Unknown:
        """An existing network."""
        return self._client.query(
            "network",
            f"the VCN {ocid}",
            "use virtual-network-family in the compartment of the network",
            lambda: self._vcn(self._network.get_vcn(ocid).data),
        )

    def _vcn(self, result: Any) -> Vcn:
        return Vcn(
            str(result.id),
            str(result.display_name),
            tuple(result.cidr_blocks or [result.cidr_block]),
            str(result.dns_label or ""),
            str(result.lifecycle_state),
            ours=tags.of_cluster(result.freeform_tags, self._cluster),
        )

    def subnet(self, ocid: str) -> Subnet | Unknown:
        """An existing subnet with its routes, ingress rules and addresses in use."""
        allow = "use virtual-network-family in the compartment of the network"

        def part(what: str, call: Callable[[], Any]) -> Any:
            return self._client.query("network", f"{what} of the subnet {ocid}", allow, call)

        def read() -> Subnet:
            result = self._network.get_subnet(ocid).data
            taken = part("the addresses", lambda: all_pages(self._network.list_private_ips, subnet_id=ocid))
            known = [] if isinstance(taken, Unknown) else taken
            return Subnet(
                ocid,
                str(result.vcn_id),
                str(result.cidr_block),
                str(result.dns_label or ""),
                str(result.lifecycle_state),
                private=bool(result.prohibit_public_ip_on_vnic),
                domain=str(result.availability_domain or ""),
                routes=part(
                    "the route table", lambda: _routes(self._network.get_route_table(result.route_table_id).data)
                ),
                ingress=part("the security lists", lambda: self._ingress(result.security_list_ids or [])),
                in_use=taken if isinstance(taken, Unknown) else tuple(str(item.ip_address) for item in known),
                host_names=tuple(str(item.hostname_label) for item in known if item.hostname_label),
            )

        return self._client.query("network", f"the subnet {ocid}", allow, read)

    def _ingress(self, lists: list[str]) -> tuple[IngressRule, ...]:
        result = [self._network.get_security_list(ocid).data for ocid in lists]
        return tuple(_rule(rule) for item in result for rule in item.ingress_security_rules or [])

    def created(self, domain: str, *, bastions: bool) -> Created | Unknown:
        """This cluster's storage in a domain, and its bastion."""

        def ours(result: list[Any]) -> list[Any]:
            return [
                item
                for item in result
                if tags.of_cluster(item.freeform_tags, self._cluster) and item.lifecycle_state not in GONE
            ]

        def read() -> Created:
            client = self._client.client("file_storage", "FileStorageClient")
            where = (self._compartment, domain)
            targets = ours(all_pages(client.list_mount_targets, *where))
            return Created(
                len(ours(all_pages(client.list_file_systems, *where))),
                len(targets),
                len(ours(all_pages(self._bastion.list_bastions, self._compartment))) if bastions else 0,
                tuple(target.observed_throughput or 0 for target in targets),
            )

        allow = f"inspect file-family {self._here}"
        return self._client.query("limits", "which file systems and mount targets exist", allow, read)

    def file_system(self, ocid: str) -> ExistingFileSystem | Unknown:
        """An existing file system."""

        def read() -> ExistingFileSystem:
            client = self._client.client("file_storage", "FileStorageClient")
            result = client.get_file_system(ocid).data
            return ExistingFileSystem(str(result.lifecycle_state), str(result.availability_domain))

        what, allow = f"the file system {ocid}", "use file-systems in the compartment of the file system"
        return self._client.query("storage", what, allow, read)

    @property
    def _identity(self) -> Any:
        return self._client.client("identity", "IdentityClient")

    @property
    def _bastion(self) -> Any:
        return self._client.client("bastion", "BastionClient")

    @property
    def _compute(self) -> Any:
        return self._client.client("core", "ComputeClient")

    @property
    def _network(self) -> Any:
        return self._client.client("core", "VirtualNetworkClient")


def _instance(result: Any) -> ExistingInstance:
    size, own_tags = result.shape_config, result.freeform_tags or {}
    return ExistingInstance(
        str(result.display_name),
        str(result.shape),
        str(result.availability_domain),
        float((size and size.ocpus) or 0),
        float((size and size.memory_in_gbs) or 0),
        own_tags.get(tags.POOL, ""),
        elastic=bool({tags.NODE, tags.BUILDER} & own_tags.keys()),
        login=tags.login_node(own_tags),
    )


def _image(result: Any, fits: bool | None) -> FoundImage:
    return FoundImage(
        str(result.id),
        str(result.display_name),
        str(result.lifecycle_state),
        fits,
        str(result.operating_system or ""),
        str(result.operating_system_version or ""),
        custom=bool(result.compartment_id),
    )


def _by_its_name(image: Any) -> bool:
    """Whether an image may be meant by its name: a baked one is only for elastic nodes."""
    return (image.freeform_tags or {}).get(tags.ROLE) != tags.IMAGE


def _routes(table: Any) -> tuple[str, ...]:
    """The kinds of the route targets: the second part of their OCIDs."""
    return tuple(str(rule.network_entity_id).split(".")[1] for rule in table.route_rules or [])


def _rule(rule: Any) -> IngressRule:
    options = rule.tcp_options or rule.udp_options
    ports = options.destination_port_range if options else None
    return IngressRule(str(rule.protocol), str(rule.source), (int(ports.min), int(ports.max)) if ports else None)
