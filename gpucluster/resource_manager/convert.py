"""Decides each key of cluster.yml from the variables of the stack.

What the stack does with a variable was read in its Terraform files (oracle-quickstart/oci-hpc, releases 2.6.0 to
3.1.0). One function for each part of the file; each reads the variables of 2.x and of 3.x that are about it.
"""

from __future__ import annotations

import ipaddress
import re

from gpucluster import shapes
from gpucluster.resource_manager.draft import Draft
from gpucluster.resource_manager.machines import image, machine, pool_image
from gpucluster.resource_manager.stack import Stack
from gpucluster.slurm import releases
from gpucluster.spec import name_of_folder
from gpucluster.spec.sections.fields import NAME_PATTERN
from gpucluster.spec.template import LONGEST_NAME

#: The largest network from which ssh may be allowed is a /8.
_LARGEST_PREFIX = 8
#: Of RFC 5737, for documentation: no host has an address of it, so none gets in.
_CLOSED = "203.0.113.0/24"
#: The largest cluster that the autoscaler of 2.x made for a job, unless its queues.conf had another number.
_MAX_CLUSTER_SIZE = 50
_STATE_VOLUME_GB = 256
# The stack has one share besides the homes, which its files call fss.
_SHARE = "storage.shares.fss"
#: Names that no pool may have; the queue of the stack that is called so gets another name.
_RESERVED = frozenset({"all", "controller", "default", "localhost", "login", "ungrouped"})
ONDEMAND = "ondemand"


def convert(stack: Stack, folder: str) -> Draft:
    """The draft of a cluster.yml.

    Args:
        folder: the name of the folder in which the file will be, for the name of a cluster that has none.
    """
    draft = Draft(given=frozenset(filter(stack.given, stack.values)))
    draft.put("version", 1)
    _name(stack, draft, folder)
    _cloud(stack, draft)
    _network(stack, draft)
    _ssh(stack, draft)
    _controller(stack, draft)
    _login(stack, draft)
    _storage(stack, draft)
    _pools(stack, draft)
    _scheduler(stack, draft)
    _services(stack, draft)
    return draft


def _name(stack: Stack, draft: Draft, folder: str) -> None:
    wanted = stack.text("cluster_name") if stack.given("cluster_name") else ""
    if stack.given("use_custom_name") and not stack.flag("use_custom_name"):
        wanted = ""
    if not wanted:
        draft.put("name", name_of_folder(folder))
        draft.decide("name", "the stack chose a random name. This one is from the name of the folder.")
        return
    name = wanted.lower() if re.fullmatch(NAME_PATTERN, wanted.lower()) else name_of_folder(wanted)
    draft.put("name", name, "cluster_name", "use_custom_name")
    if name != wanted.lower():
        text = f"the stack's name does not fit: at most {LONGEST_NAME} characters, which begin with a letter."
        draft.decide("name", text, "cluster_name")


def _cloud(stack: Stack, draft: Draft) -> None:
    draft.put("cloud.provider", "oci")
    for key, variable in (("cloud.region", "region"), ("cloud.compartment_id", "targetCompartment")):
        if stack.text(variable):
            draft.put(key, stack.text(variable), variable)
        else:
            draft.require(key, variable)
    of_controller = stack.first("controller_ad", "bastion_ad")
    domain = stack.first("ad", of_controller)
    same = stack.text(of_controller) in ("", stack.text(domain))
    if stack.text(domain):
        sources = (domain, of_controller) if same and stack.given(of_controller) else (domain,)
        draft.put("cloud.availability_domain", stack.text(domain), *sources)
    if not same:
        text = "the stack had its controller in another domain. Here one domain has the controller and the nodes."
        draft.decide("cloud.availability_domain", text, of_controller)


# --- network -----


def _network(stack: Stack, draft: Draft) -> None:
    private = stack.flag("private_deployment")
    if private:
        draft.put("network.access", "bastion", "private_deployment")
    draft.put("network.vcn_cidr", stack.text("vcn_subnet"), "vcn_subnet")
    if not private:
        draft.put("network.public_subnet_cidr", stack.text("public_subnet"), "public_subnet")
    draft.put("network.private_subnet_cidr", stack.text("private_subnet"), "private_subnet")
    if stack.flag("use_existing_vcn"):
        _existing_network(stack, draft, private=private)
    draft.put("network.rdma_cidr", stack.text("rdma_subnet"), "rdma_subnet")
    allowed = stack.text("ssh_cidr")
    if _too_large(allowed):
        draft.put("network.ssh_allowed_cidrs", [_CLOSED], "ssh_cidr")
        text = (
            "the stack let the whole internet reach ssh. Name the networks that you log in from; this one is nobody's."
        )
        draft.decide("network.ssh_allowed_cidrs", text, "ssh_cidr")
    else:
        draft.put("network.ssh_allowed_cidrs", [allowed], "ssh_cidr")


def _existing_network(stack: Stack, draft: Draft, *, private: bool) -> None:
    draft.put("network.vcn_id", stack.text("vcn_id"), "vcn_id", "use_existing_vcn")
    if not private:
        draft.put("network.public_subnet_id", stack.text("public_subnet_id"), "public_subnet_id")
    draft.put("network.private_subnet_id", stack.text("private_subnet_id"), "private_subnet_id")
    ranges = ["vcn_cidr", "private_subnet_cidr", *([] if private else ["public_subnet_cidr"])]
    for name in ranges:
        key = f"network.{name}"
        text = "the range that the existing network has: the variables of the stack do not say it."
        draft.decide(key, text, *draft.sources_of(key))


def _too_large(network: str) -> bool:
    try:
        return ipaddress.ip_network(network, strict=False).prefixlen < _LARGEST_PREFIX
    except ValueError:
        return False


def _ssh(stack: Stack, draft: Draft) -> None:
    keys = [line.strip() for line in stack.text("ssh_key").splitlines() if line.strip()]
    if keys:
        draft.put("ssh.public_keys", keys, "ssh_key")
    else:
        draft.require("ssh.public_keys", "ssh_key")


# --- machines -----


def _controller(stack: Stack, draft: Draft) -> None:
    of_2 = stack.given("bastion_shape") and not stack.given("controller_shape")
    role = "bastion" if of_2 else "controller"
    machine(stack, draft, "controller", role)
    image(stack, draft, "controller.image", role)
    if stack.flag("slurm_ha") and stack.flag("slurm"):
        draft.put("controller.state_volume_gb", _STATE_VOLUME_GB, "slurm_ha")
        text = (
            "there is no backup controller. The state is on this volume, and a lost controller is replaced in minutes."
        )
        draft.decide("controller.state_volume_gb", text, "slurm_ha")


def _login(stack: Stack, draft: Draft) -> None:
    # Releases before 2.10.1 have no login node, and nothing else in their values shows it.
    has_one = stack.flag("login_node") and (stack.given("login_node") or not stack.given("bastion_shape"))
    if not has_one:
        return
    draft.put("login.count", 1, "login_node")
    machine(stack, draft, "login", "login")
    of_2 = ("use_marketplace_image_login", "custom_login_image", "unsupported_login_image", "use_standard_image_login")
    if stack.release() == 2 and any(map(stack.given, of_2)):  # noqa: PLR2004 - the release
        image(stack, draft, "login.image", "login")


def _pools(stack: Stack, draft: Draft) -> None:
    queue = stack.text("queue")
    name = _pool_name(queue)
    networked = stack.first("rdma_enabled", "cluster_network")
    rdma = stack.flag(networked)
    pool = f"pools.{name}"
    _nodes(stack, draft, pool, networked=networked)
    if queue != name:
        draft.decide(pool, "the stack's queue has a name that no pool may have, and this is like it.", "queue")
    count = stack.number("node_count") or 0
    draft.put(f"{pool}.count", count, "node_count")
    fabric, shape = stack.text("memory_fabric_id"), shapes.catalogue().get(stack.text("cluster_network_shape"))
    if fabric and rdma and shape and shape.memory_fabric:
        draft.put(f"{pool}.memory_fabric_id", fabric, "memory_fabric_id")
    if not rdma and shapes.catalogue().get(stack.text("instance_pool_shape"), shapes.get("VM.Standard.E5.Flex")).rdma:
        draft.put(f"{pool}.rdma", False, networked)
    if stack.given("queue"):
        draft.put(f"{pool}.partition", name, "queue")
    _elastic(stack, draft, pool, count)
    if stack.flag("ondemand_partition"):
        extra = ONDEMAND if name != ONDEMAND else f"{ONDEMAND}-2"
        _nodes(stack, draft, f"pools.{extra}", networked=networked)
        maximum = stack.number("ondemand_partition_count") or 0
        draft.put(f"pools.{extra}.max_count", maximum, "ondemand_partition_count", "ondemand_partition")


def _pool_name(queue: str) -> str:
    plain = re.sub(r"[^a-z0-9]+", "-", queue.lower()).lstrip("-0123456789")[:20].rstrip("-") or "compute"
    return f"{plain[:15]}-pool" if plain in _RESERVED else plain


def _nodes(stack: Stack, draft: Draft, pool: str, *, networked: str) -> None:
    """The machines of a pool: those of the permanent nodes and those on demand are alike in the stack."""
    shape = "cluster_network_shape" if stack.flag(networked) else "instance_pool_shape"
    machine(stack, draft, pool, "instance_pool", shape=(shape, networked))
    pool_image(stack, draft, f"{pool}.image")
    bare_metal = stack.text(shape).startswith("BM.")
    facts = shapes.catalogue().get(stack.text(shape))
    if stack.given("use_compute_agent") and facts and facts.rdma_interfaces and stack.flag(networked):
        way = "plugin" if stack.flag("use_compute_agent") else "cloud-init"
        draft.put(f"{pool}.rdma_addressing", way, "use_compute_agent")
    if not bare_metal:
        return
    bios = stack.flag("BIOS")
    numa = stack.text("numa_nodes_per_socket")
    if bios and numa.startswith("NPS"):
        draft.put(f"{pool}.platform.numa_nodes_per_socket", numa, "numa_nodes_per_socket", "BIOS")
    if bios and stack.given("SMT"):
        draft.put(f"{pool}.platform.smt", stack.flag("SMT"), "SMT", "BIOS")
    if not stack.flag("hyperthreading"):
        draft.put(f"{pool}.platform.smt", False, "hyperthreading")


def _elastic(stack: Stack, draft: Draft, pool: str, count: int) -> None:
    if stack.flag("autoscaling"):
        draft.put(f"{pool}.max_count", max(count, _MAX_CLUSTER_SIZE), "autoscaling")
        text = "how many nodes at most. The stack had its limits in queues.conf, on the controller."
        draft.decide(f"{pool}.max_count", text, "autoscaling")
    elif count == 0:
        draft.put(f"{pool}.max_count", 1, "node_count")
        text = "the stack has no node in this pool. A pool has at least one, which is launched when a job needs it."
        draft.decide(f"{pool}.max_count", text, "node_count")


# --- storage -----


def _storage(stack: Stack, draft: Draft) -> None:
    made = stack.first("create_fss", "create_ffs")
    added, kind = stack.flag("add_nfs"), stack.text(made).lower()
    new = kind in ("new", "true", "1")
    home_on_fss = stack.text("shared_home").lower() == "fss" if stack.given("shared_home") else stack.flag("home_fss")
    shared = stack.text("shared_home").lower() != "none" if stack.given("shared_home") else True
    of_home = stack.first("shared_home", "home_fss", "home_nfs")
    sources = [name for name in ("add_nfs", made, of_home) if stack.given(name)]
    if sources:
        draft.put("storage.home.enabled", True, *sources)
    if not shared and stack.flag("slurm"):
        draft.decide("storage.home.enabled", "Slurm needs a home share here; the stack shared no homes.", of_home)
    if added and new and not home_on_fss and stack.text("nfs_target_path"):
        draft.put(f"{_SHARE}.mount_path", stack.text("nfs_target_path"), "nfs_target_path", "add_nfs")
    if added and not new:
        _existing_share(stack, draft, home=home_on_fss)
    elif stack.given("shared_home") or stack.given("home_nfs"):
        text = "a new file system. Homes of the stack are not copied: see the page on the migration."
        draft.decide("storage.home", text, of_home)
    if stack.given("localdisk"):
        draft.put("storage.local_disk.enabled", stack.flag("localdisk"), "localdisk")


def _existing_share(stack: Stack, draft: Draft, *, home: bool) -> None:
    """An NFS server or a mount target that exists. The stack has homes on it in the folder `home` of the export."""
    server, export = stack.text("nfs_source_IP"), stack.text("nfs_source_path").rstrip("/")
    if home and server:
        draft.put("storage.home.server", server, "nfs_source_IP")
        draft.put("storage.home.export_path", f"{export}/home", "nfs_source_path")
        text = "the stack keeps homes in the folder `home` of this export. Try the cluster with a copy of it first."
        draft.decide("storage.home.export_path", text, "nfs_source_path")
        return
    if not server:
        text = "the stack mounts an existing share, whose address it does not name: add it to `storage.shares`."
        draft.decide("storage.shares", text, "add_nfs", "nfs_source_path", has_value=False)
        return
    draft.put(f"{_SHARE}.mount_path", stack.text("nfs_target_path") or export, "nfs_target_path", "add_nfs")
    draft.put(f"{_SHARE}.server", server, "nfs_source_IP")
    draft.put(f"{_SHARE}.export_path", export, "nfs_source_path")


# --- Slurm and services -----


def _scheduler(stack: Stack, draft: Draft) -> None:
    if not stack.flag("slurm"):
        draft.put("scheduler", "none", "slurm")
        text = "the stack installed no Slurm. `none`: nodes, a list of hosts and ssh; or `slurm`, or `kubernetes`."
        draft.decide("scheduler", text, "slurm")
        return
    draft.put("scheduler", "slurm", "slurm")
    if stack.given("slurm_version"):
        release = ".".join(stack.text("slurm_version").split(".")[:2])
        if release in releases.BUILDABLE:
            draft.put("slurm.release", release, "slurm_version")
        else:
            text = f"gpucluster builds {', '.join(releases.BUILDABLE)}; without a value the last."
            draft.decide("slurm.release", text, "slurm_version", has_value=False)
    if stack.given("pam"):
        draft.put("slurm.login_needs_job", stack.flag("pam"), "pam")


def _services(stack: Stack, draft: Draft) -> None:
    slurm = stack.flag("slurm")
    if stack.flag("privilege_sudo") and stack.given("privilege_group_name"):
        draft.put("users.privilege_group", stack.text("privilege_group_name"), "privilege_group_name", "privilege_sudo")
        text = "its members run containers as root, and get no sudo, which the stack gave them."
        draft.decide("users.privilege_group", text, "privilege_sudo")
    if slurm and stack.given("healthchecks"):
        draft.put("checks.enabled", stack.flag("healthchecks"), "healthchecks")
    containers = [name for name in ("enroot", "pyxis") if stack.flag(name)]
    if slurm and containers:
        draft.put("containers.runtimes", ["enroot"], *containers)
    _monitoring(stack, draft)


def _monitoring(stack: Stack, draft: Draft) -> None:
    wanted = stack.first("cluster_monitoring", "monitoring")
    if not stack.flag(wanted):
        return
    draft.put("monitoring.enabled", True, wanted)
    draft.put("monitoring.grafana", True, wanted)
    if stack.flag("monitoring_node") and draft.value("login.count"):
        draft.put("monitoring.host", "login-1", "monitoring_node")
    elif stack.flag("monitoring_node"):
        text = "there is no monitoring node: Prometheus runs on the controller, or on a login node if you add one."
        draft.decide("monitoring.host", text, "monitoring_node", has_value=False)
    if stack.flag("alerting"):
        text = "name a configuration of Alertmanager with your receivers. Without it Prometheus shows the alerts."
        draft.decide("monitoring.alertmanager_file", text, "alerting", has_value=False)
