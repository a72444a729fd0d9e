"""Keys that only a real cloud has much use for: what they mean when they are right, and each error at its place (§)."""
# A row of the tables is a line, so that rows can be compared.
# ruff: noqa: E501

from __future__ import annotations

from pathlib import Path

import pytest

from gpucluster import handover, shapes
from gpucluster.errors import InputError
from gpucluster.spec import ClusterSpec, loads
from tests.spec import unbuilt_shapes
from tests.spec.faults import findings, reported
from tests.spec.spec_texts import LOCAL, MARK

NETWORK = "  public_subnet_cidr: 10.77.0.0/24\n"
POOL = "    count: 2"
HOME = "    export_path: /mnt/home"
END = "software:\n"
VCN, PUBLIC, PRIVATE = "ocid1.vcn.oc1.iad.v", "ocid1.subnet.oc1.iad.p", "ocid1.subnet.oc1.iad.q"
FILE_SYSTEM = "ocid1.filesystem.oc1.eu_frankfurt_1.f"
EXISTING = f"{NETWORK}  vcn_id: {VCN}\n  public_subnet_id: {PUBLIC}\n  private_subnet_id: {PRIVATE}\n"
TAGS = "  provider: local"


def pool(*lines: str) -> str:
    return "\n".join([POOL, *(f"    {line}" for line in lines)])


def tags(kind: str, text: str) -> str:
    return f"{TAGS}\n  {kind}: {text}"


def state(text: str) -> str:
    return f"state: {text}\n{END}"


def home(*lines: str) -> str:
    return "\n".join([HOME, *(f"    {line}" for line in lines)])


# id: (what stands in LOCAL, what stands there instead with § at the error, path, words)
ROWS: dict[str, tuple[str, str, str, str]] = {
    # --- tags
    "own tag": (TAGS, tags("freeform_tags", "{§role: x}"), "cloud.freeform_tags.role", "the tag role is set by gpucluster itself. Choose another key; reserved are gpucluster, gpucluster-id, "),
    "own tag in capitals": (TAGS, tags("freeform_tags", "{§Pool: x}"), "cloud.freeform_tags.Pool", "is set by gpucluster"),
    "space in a tag": (TAGS, tags("freeform_tags", "{§a b: x}"), "cloud.freeform_tags.a b", "is not a valid key of a tag"),
    "period in a tag": (TAGS, tags("freeform_tags", "{§a.b: x}"), "cloud.freeform_tags.a.b", "no spaces and no periods"),
    "number as tag": (TAGS, tags("freeform_tags", "{team: §7}"), "cloud.freeform_tags.team", 'Write it in quotes: "7"'),
    "long tag": (TAGS, tags("freeform_tags", f"{{team: §{'x' * 257}}}"), "cloud.freeform_tags.team", "at most 256 characters"),
    "many tags": (TAGS, tags("freeform_tags", "§{a: x, b: x, c: x, d: x, e: x, f: x}"), "cloud.freeform_tags", "at most 5 entries; it has 6"),
    "defined tag without namespace": (TAGS, tags("defined_tags", "{§CostCenter: '42'}"), "cloud.defined_tags.CostCenter", "must be a namespace and a key with a period between them; got \"CostCenter\". Such as `Operations.CostCenter`"),
    "defined tag in other case": (TAGS, tags("defined_tags", "{Ops.Team: x, §ops.team: x}"), "cloud.defined_tags.ops.team", "is the same tag as Ops.Team: OCI ignores case. Keep one of them"),
    "namespace in other case": (TAGS, tags("defined_tags", "{Ops.Team: x, §OPS.Cost: x}"), "cloud.defined_tags.OPS.Cost", "is in the same namespace as the tags of Ops: OCI ignores case. Write Ops.Cost"),
    "defined tag with two periods": (TAGS, tags("defined_tags", "{§a.b.c: x}"), "cloud.defined_tags.a.b.c", "must be a namespace and a key"),
    "bastion needs an address": ("10.77.1.0/24", "§10.77.1.0/29", "network.private_subnet_cidr", "14 are needed"),
    "RDMA range too small": (POOL, pool("rdma_addressing: cloud-init", "§"), "", ""),
    # --- storage
    "two homes": (HOME, home(f"file_system_id: {FILE_SYSTEM}", "§server: 10.77.1.9"), "storage.home.server", "conflicts with file_system_id. Keep"),
    "mount target as home": (HOME, home("file_system_id: §ocid1.mounttarget.oc1.iad.m"), "storage.home.file_system_id", "must be the OCID of a file system"),
    "name of a server": (HOME, home("server: §nfs.example.com"), "storage.home.server", "must be an IPv4 address; got \"nfs.example.com\""),
    "server of IPv6": (HOME, home("server: §'fd00::1'"), "storage.home.server", "must be an IPv4 address"),
    "server on this machine": (HOME, home("server: §127.0.0.1"), "storage.home.server", "other machines can't reach 127.0.0.1"),
    "disk over the home": (HOME, f"{HOME}\n  local_disk: {{mount_path: §/mnt/home/scratch}}", "storage.local_disk.mount_path", "would hide each other"),
    "disk in a directory of the system": (HOME, f"{HOME}\n  local_disk: {{mount_path: §/usr/scratch}}", "storage.local_disk.mount_path", "belongs to the system"),
    "disk with dots": (HOME, f"{HOME}\n  local_disk: {{mount_path: §/mnt/../x}}", "storage.local_disk.mount_path", "must not contain . or .."),
    # --- images
    "name alone": (POOL, pool("§image: {name: Oracle-Linux-8.10}"), "pools.compute.image.login_user", "the user of this image that ssh logs in as. Add `login_user:`; it has a default if operating_system is Oracle Linux, Canonical Ubuntu or Debian"),
    "name and version": (POOL, pool("image: §{name: x, version: '8'}"), "pools.compute.image", "lacks operating_system"),
    "name beside OCID": (POOL, pool("image: {name: x, §ocid: ocid1.image.oc1..x, login_user: me}"), "pools.compute.image.ocid", "conflicts with name. Keep one of the two"),
    "listing beside system": (POOL, pool("image: {operating_system: Debian, version: '13', §listing: x}"), "pools.compute.image.listing", "conflicts with operating_system"),
    "listing beside name": (POOL, pool("image: {name: x, §listing: y, login_user: me}"), "pools.compute.image.listing", "conflicts with name"),
    "listing without user": (POOL, pool("§image: {listing: GPU}"), "pools.compute.image.login_user", "is missing"),
    "listing of an image": (POOL, pool("image: {listing: §ocid1.image.oc1..x, login_user: me}"), "pools.compute.image.listing", "is an OCID, but not the OCID of a listing"),
    "blank listing": (POOL, pool("image: {listing: §' x', login_user: me}"), "pools.compute.image.listing", "must be one line, without spaces at its start or end"),
    "version of no listing": (POOL, pool("image: {operating_system: Debian, version: '13', §listing_version: '1'}"), "pools.compute.image.listing_version", "has no meaning without listing"),
    "made to fit by force": (POOL, pool("image: {operating_system: Debian, version: '13', §make_compatible: true}"), "pools.compute.image.make_compatible", "has no meaning without ocid"),
    # --- iam
    "identity domain": (END, f"iam: {{identity_domain: §my domain}}\n{END}", "iam.identity_domain", "must be the name of an identity domain"),
    "rights in a word": (END, f"iam: {{create: §no}}\n{END}", "iam.create", "Write false, without quotes"),
    "tag without namespace": (END, f"iam: {{tag: §Cluster}}\n{END}", "iam.tag", "must be a namespace and a key with a period between them"),
    "tag with two values": (TAGS, f"{TAGS}\n  defined_tags: {{Ops.Cluster: x}}\niam: {{tag: §Ops.Cluster}}", "iam.tag", "cloud.defined_tags sets it, too. Take it out"),
    "null as setting": (END, state("{backend: oci, config: {bucket: x, namespace: §null}}"), "state.config.namespace", ""),
}  # fmt: skip
del (
    ROWS["RDMA range too small"],
    ROWS["bastion needs an address"],
    ROWS["null as setting"],
)  # below, in tests of their own


def test_two_threads_of_a_core_that_has_one(monkeypatch: pytest.MonkeyPatch) -> None:
    unbuilt_shapes.allow(monkeypatch)
    text = LOCAL.replace("shape: BM.GPU4.8", "shape: BM.GPU.GB200.4\n    platform: {smt: true}", 1)
    (found,) = findings(text)
    assert found[2] == "pools.compute.platform.smt"
    assert "one thread per core" in found[3]


@pytest.mark.parametrize("row", ROWS.values(), ids=ROWS.keys())
def test_one_fault_is_told_once_and_at_its_place(row: tuple[str, str, str, str]) -> None:
    reported(row)


# ---------------------------------------------------------------------------------------------------------------------
# What is right


def test_what_was_not_given_stays_as_it_was() -> None:
    spec = loads(LOCAL)
    assert (spec.cloud.freeform_tags, spec.cloud.defined_tags) == ({}, {})
    assert (spec.network.access, spec.network.vcn_id, spec.network.rdma_cidr) == ("public", None, "192.168.0.0/16")
    assert (spec.storage.home.file_system_id, spec.storage.home.server) == (None, None)
    assert (spec.storage.local_disk.enabled, spec.storage.local_disk.mount_path) == (True, "/mnt/localdisk")
    assert (spec.iam.create, spec.iam.identity_domain) == (True, None)
    assert (spec.state.backend, spec.state.config) == ("local", {})
    assert spec.controller.boot_volume_vpus_per_gb == 10
    compute = spec.pools["compute"]
    assert (compute.rdma, compute.rdma_addressing, compute.removed_nodes) == (None, "plugin", ())
    assert (compute.platform.numa_nodes_per_socket, compute.platform.smt) == (None, None)


def test_an_existing_network_behind_a_bastion() -> None:
    text = EXISTING.replace(NETWORK, "  access: bastion\n").replace(f"  public_subnet_id: {PUBLIC}\n", "")
    network = loads(LOCAL.replace(NETWORK, text)).network
    assert (network.access, network.public_subnet_cidr, network.public_subnet_id) == ("bastion", None, None)
    assert (network.vcn_id, network.private_subnet_id) == (VCN, PRIVATE)
    assert loads(LOCAL.replace(NETWORK, EXISTING)).network.public_subnet_id == PUBLIC


def test_a_compartment_of_the_local_cloud() -> None:
    text = LOCAL.replace(TAGS, f"{TAGS}\n  compartment_id: ocid1.compartment.oc1..mine")
    assert loads(text).cloud.compartment_id == "ocid1.compartment.oc1..mine"


@pytest.mark.parametrize(
    ("image", "user"),
    [
        ("{operating_system: Oracle Linux, version: '8'}", "opc"),
        ("{name: Oracle-Linux-8.10, operating_system: Oracle Linux}", "opc"),
        ("{name: Oracle-Linux-8.10, operating_system: Oracle Linux, version: '8'}", "opc"),
        ("{name: Rocky-9, login_user: rocky}", "rocky"),
        ("{name: Rocky-9, operating_system: Rocky Linux, login_user: rocky}", "rocky"),
        ("{listing: Oracle Linux - GPU Cluster Networking Image, login_user: opc}", "opc"),
        ("{listing: ocid1.appcataloglisting.oc1..x, listing_version: '1.0', login_user: opc}", "opc"),
        ("{ocid: ocid1.image.oc1.iad.x, make_compatible: true, login_user: me}", "me"),
    ],
)
def test_the_ways_to_name_an_image(image: str, user: str) -> None:
    assert loads(LOCAL.replace(POOL, pool(f"image: {image}"))).pools["compute"].image.login_user == user


def spec_with(*lines: str) -> ClusterSpec:
    return loads(LOCAL.replace(POOL, pool(*lines)))


def tfvars(spec: ClusterSpec, **more: object) -> dict[str, object]:
    return handover.tfvars(
        spec,
        tenancy_id="t",
        compartment_id="c",
        ssh_authorized_keys=["k"],
        baked_images={},
        **more,  # type: ignore[arg-type]
    )


def test_a_pool_may_do_without_rdma() -> None:
    plain = spec_with("rdma: false").pools["compute"]
    assert (plain.uses_rdma, plain.kind) == (False, "instances")
    assert (spec_with("rdma: true").pools["compute"].uses_rdma, spec_with().pools["compute"].uses_rdma) == (True, True)
    assert loads(LOCAL.replace("shape: BM.GPU4.8", "shape: BM.GPU3.8")).pools["compute"].uses_rdma is False
    assert spec_with("rdma: false", "max_count: 3").pools["compute"].kind == "instances"


def test_the_names_of_nodes_that_stay() -> None:
    def names(*lines: str) -> tuple[str, ...]:
        return handover.permanent_names("compute", spec_with(*lines).pools["compute"])

    assert names() == ("compute-1", "compute-2")
    assert names("removed_nodes: [compute-1]") == ("compute-2", "compute-3")
    assert names("removed_nodes: [compute-3, compute-2]") == ("compute-1", "compute-4")
    assert names("removed_nodes: [compute-9]") == ("compute-1", "compute-2")
    assert handover.permanent_names("cpu", spec_with().pools["cpu"]) == ()


def test_what_is_given_for_the_firmware_is_sent_and_nothing_else() -> None:
    def platform(*lines: str) -> object:
        pools = tfvars(spec_with(*lines))["pools"]
        assert isinstance(pools, dict)
        assert pools["cpu"]["platform"] is None
        return pools["compute"]["platform"]

    assert platform() is None
    assert platform("platform: {}") is None
    assert platform("platform: {smt: true}") == {"type": "AMD_ROME_BM_GPU", "numa_nodes_per_socket": None, "smt": True}
    assert platform("platform: {numa_nodes_per_socket: NPS0}") == {
        "type": "AMD_ROME_BM_GPU",
        "numa_nodes_per_socket": "NPS0",
        "smt": None,
    }


def test_fixed_addresses_leave_out_the_plugin_that_gives_others() -> None:
    def plugins(*lines: str) -> object:
        pools = tfvars(spec_with(*lines))["pools"]
        assert isinstance(pools, dict)
        return pools["compute"]["rdma_plugins"]

    assert plugins() == list(handover.RDMA_PLUGINS)
    assert plugins("rdma_addressing: cloud-init") == ["Compute HPC RDMA Authentication"]
    assert plugins("rdma: false") == []


def test_our_tags_win_and_theirs_are_kept() -> None:
    spec = loads(LOCAL.replace(TAGS, tags("freeform_tags", "{team: vision}")))
    assert tfvars(spec)["freeform_tags"] == {"team": "vision", "gpucluster": "demo"}


def test_what_is_not_given_to_terraform_is_null() -> None:
    found = tfvars(spec_with())
    assert (found["home_region"], found["iam"]) == ("local-1", None)
    given = tfvars(spec_with(), home_region="us-phoenix-1", user_data={"compute": "x"}, iam={"dynamic_group": "d"})
    assert (given["home_region"], given["iam"]) == ("us-phoenix-1", {"dynamic_group": "d"})
    controller, pools = given["controller"], given["pools"]
    assert isinstance(controller, dict)
    assert isinstance(pools, dict)
    assert (controller["user_data"], pools["compute"]["user_data"], pools["cpu"]["user_data"]) == (None, "x", None)


def test_one_thread_for_each_core_where_smt_is_off() -> None:
    assert shapes.slurm_node(shapes.get("BM.GPU4.8"))["ThreadsPerCore"] == 2
    assert shapes.slurm_node(shapes.get("BM.GPU4.8"), smt=False)["ThreadsPerCore"] == 1


def test_an_image_that_was_baked_before_the_new_keys_came_still_fits() -> None:
    """The fingerprint of an image by system and version, or by OCID, is made of the same facts as ever."""
    by_system, by_listing = spec_with(), spec_with("image: {listing: x, login_user: opc}")
    assert handover.image_fingerprint(by_system.pools["compute"].image) == {
        "ocid": None,
        "operating_system": "Debian",
        "version": "13",
    }
    assert handover.image_fingerprint(by_listing.pools["compute"].image)["listing"] == "x"


def test_every_fault_of_the_new_keys_is_told_at_once(tmp_path: Path) -> None:
    # They take helpers of this file.
    from tests.spec.rules import test_nodes as nodes
    from tests.spec.rules import test_state as backends
    from tests.spec.sections import test_network as network

    text = LOCAL
    rows = {**ROWS, **network.ROWS, **nodes.ROWS, **backends.ROWS}
    for row in ("own tag", "no public subnet", "two homes", "node 0", "unknown backend"):
        old, new, _, _ = rows[row]
        text = text.replace(old, new.replace(MARK, ""), 1)
    with pytest.raises(InputError) as caught:
        loads(text, str(tmp_path / "cluster.yml"))
    assert {found.path for found in caught.value.findings} == {
        "cloud.freeform_tags.role",
        "network.public_subnet_cidr",
        "storage.home.server",
        "pools.compute.removed_nodes[0]",
        "state.backend",
    }
