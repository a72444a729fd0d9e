"""Keys that only a real cloud has much use for: what they mean when they are right, and each error at its place (§)."""
# A row of the tables is a line, so that rows can be compared.
# ruff: noqa: E501

from __future__ import annotations

from pathlib import Path

import pytest

from gpucluster import handover, shapes
from gpucluster.errors import InputError
from gpucluster.spec import ClusterSpec, loads
from gpucluster.spec.rules.state import BACKENDS
from tests.spec import unbuilt_shapes
from tests.spec.spec_texts import LOCAL, MARK, marked
from tests.spec.test_spec_faults import findings

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
    # --- network
    "no public subnet": (NETWORK, "", "network.public_subnet_cidr", "is missing: with access public it is the subnet of the controller. Add it, such as `public_subnet_cidr: 10.0.0.0/24`, or write `access: bastion`"),
    "public subnet of a private cluster": (NETWORK, f"  access: bastion\n  §{NETWORK.strip()}\n", "network.public_subnet_cidr", "has no meaning with access bastion"),
    "unknown access": (NETWORK, f"{NETWORK}  access: §bastian\n", "network.access", "must be public or bastion; got \"bastian\". Did you mean bastion?"),
    "bastion needs an address": ("10.77.1.0/24", "§10.77.1.0/29", "network.private_subnet_cidr", "14 are needed"),
    "no OCID of a network": (NETWORK, f"{EXISTING}".replace(VCN, f"§{PUBLIC}"), "network.vcn_id", "must be the OCID of a virtual cloud network"),
    "no OCID of a subnet": (NETWORK, f"{EXISTING}".replace(PUBLIC, f"§{VCN}"), "network.public_subnet_id", "must be the OCID of a subnet"),
    "subnet without its network": (NETWORK, f"{NETWORK}  §private_subnet_id: {PRIVATE}\n", "network.private_subnet_id", "needs vcn_id, the network that contains it. Add `vcn_id:"),
    "network without a subnet": (NETWORK, f"{NETWORK}  vcn_id: {VCN}\n  public_subnet_id: {PUBLIC}\n", "network.private_subnet_id", "is missing: with an existing network, its subnets must be named, too. Add `private_subnet_id: ocid1.subnet"),
    "network without public subnet": (NETWORK, f"{NETWORK}  vcn_id: {VCN}\n  private_subnet_id: {PRIVATE}\n", "network.public_subnet_id", "is missing"),
    "one subnet for both": (NETWORK, EXISTING.replace(PRIVATE, f"§{PUBLIC}"), "network.private_subnet_id", "is the same as public_subnet_id"),
    "public subnet behind a bastion": (NETWORK, EXISTING.replace(NETWORK, "  access: bastion\n").replace("  public", "  §public"), "network.public_subnet_id", "has no meaning with access bastion"),
    "RDMA in the network": (NETWORK, f"{NETWORK}  rdma_cidr: §10.77.128.0/17\n", "network.rdma_cidr", "10.77.128.0/17 overlaps vcn_cidr 10.77.0.0/16. Use another range"),
    "RDMA on no network": (NETWORK, f"{NETWORK}  rdma_cidr: §192.168.0.0\n", "network.rdma_cidr", "with its prefix"),
    "RDMA on the cloud's own": (NETWORK, f"{NETWORK}  rdma_cidr: §169.254.0.0/16\n", "network.rdma_cidr", "link-local"),
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
    # --- machines
    "volume of odd speed": (POOL, pool("boot_volume_vpus_per_gb: §15"), "pools.compute.boot_volume_vpus_per_gb", "must be a multiple of 10; got 15"),
    "slow volume": (POOL, pool("boot_volume_vpus_per_gb: §0"), "pools.compute.boot_volume_vpus_per_gb", "at least 10"),
    "fast volume": ("memory_gb: 32", "memory_gb: 32\n  boot_volume_vpus_per_gb: §130", "controller.boot_volume_vpus_per_gb", "at most 120"),
    "no RDMA": ("    max_count: 4", "    max_count: 4\n    rdma: §true", "pools.cpu.rdma", "VM.Standard.E5.Flex has no RDMA. Delete the line, or use a shape with RDMA"),
    "addresses without RDMA": ("    max_count: 4", "    max_count: 4\n    §rdma_addressing: cloud-init", "pools.cpu.rdma_addressing", "has no meaning for VM.Standard.E5.Flex"),
    "addresses with RDMA off": (POOL, pool("rdma: false", "§rdma_addressing: cloud-init"), "pools.compute.rdma_addressing", "has no meaning with rdma false"),
    "unknown addressing": (POOL, pool("rdma_addressing: §cloudinit"), "pools.compute.rdma_addressing", "must be plugin or cloud-init; got \"cloudinit\". Did you mean cloud-init?"),
    "NPS": (POOL, pool("platform: {numa_nodes_per_socket: §NPS3}"), "pools.compute.platform.numa_nodes_per_socket", "must be NPS0 or NPS1 or NPS2 or NPS4"),
    "NPS as number": (POOL, pool("platform: {numa_nodes_per_socket: §4}"), "pools.compute.platform.numa_nodes_per_socket", "must be NPS0 or"),
    "firmware of a virtual machine": ("    max_count: 4", "    max_count: 4\n    platform: {§smt: false}", "pools.cpu.platform.smt", "VM.Standard.E5.Flex has no firmware settings"),
    "hosts in a fabric": ("shape: BM.GPU4.8", "shape: §BM.GPU.GB200.4", "pools.compute.shape", "OCI launches them in a GPU memory cluster only"),
    "firmware elsewhere": (POOL, pool("§smt: false"), "pools.compute.smt", "unknown key. It belongs under pools.<name>.platform"),
    "reservation": (POOL, pool("capacity_reservation_id: §mine"), "pools.compute.capacity_reservation_id", "must be the OCID of a capacity reservation"),
    "node of another pool": (POOL, pool("removed_nodes: [§cpu-1]"), "pools.compute.removed_nodes[0]", "is not a permanent node of the pool compute: \"cpu-1\". The pool has compute-1, compute-2"),
    "elastic node": (POOL, pool("removed_nodes: [compute-1, §compute-e1]"), "pools.compute.removed_nodes[1]", "The pool has compute-2, compute-3"),
    "node 0": (POOL, pool("removed_nodes: [§compute-0]"), "pools.compute.removed_nodes[0]", "is not a permanent node"),
    "node with a zero in front": (POOL, pool("removed_nodes: [§compute-01]"), "pools.compute.removed_nodes[0]", "is not a permanent node"),
    "node twice": (POOL, pool("removed_nodes: [compute-2, §compute-2]"), "pools.compute.removed_nodes[1]", "occurs twice: \"compute-2\". Keep one"),
    "node of a pool on demand": ("    max_count: 4", "    max_count: 4\n    removed_nodes: [§compute-1]", "pools.cpu.removed_nodes[0]", "Their names are cpu-1, cpu-2 and so on"),
    "number for a node": (POOL, pool("removed_nodes: [§2]"), "pools.compute.removed_nodes[0]", "must be text; got 2"),
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
    # --- state
    "unknown backend": (END, state("{backend: §gcs}"), "state.backend", "must be local or oci or s3 or http"),
    "settings of the local backend": (END, state("{config: {§path: x}}"), "state.config.path", "unknown setting of the backend local. It has no settings"),
    "no bucket": (END, state("{backend: oci, config: {namespace: x}}"), "state.config.bucket", "is missing: the backend oci needs it. Add `config: {bucket: terraform}`"),
    "empty namespace": (END, state("{backend: oci, config: {bucket: x, namespace: §''}}"), "state.config.namespace", "is missing"),
    "no bucket for S3": (END, state("{backend: s3}"), "state.config.bucket", "is missing"),
    "misspelled setting": (END, state("{backend: oci, config: {bucket: x, namespace: y, §regoin: z}}"), "state.config.regoin", "unknown setting of the backend oci. Did you mean region?"),
    "list as setting": (END, state("{backend: oci, config: {bucket: x, namespace: y, key: §[z]}}"), "state.config.key", "must be text, a whole number, true or false; got a list"),
    "null as setting": (END, state("{backend: oci, config: {bucket: x, namespace: §null}}"), "state.config.namespace", ""),
    "password in an address": (END, state("{backend: http, config: {address: §'https://me:hunter2@example.com/x'}}"), "state.config.address", "contains a user's password"),
    "token in an address": (END, state("{backend: http, config: {lock_address: §'https://hunter2@example.com/x'}}"), "state.config.lock_address", "contains a user's password"),
    "password in an endpoint": (END, state("{backend: s3, config: {bucket: x, endpoint: §'https://me:hunter2@example.com'}}"), "state.config.endpoint", "contains a user's password"),
    "pre-authenticated request": (END, state("{backend: http, config: {address: §'https://objectstorage.example.com/p/hunter2/n/x/b/y/o/z'}}"), "state.config.address", "pre-authenticated request, a secret, which this file must not contain. Delete the line, and set the environment variable TF_HTTP_ADDRESS"),
    "no URL": (END, state("{backend: http, config: {address: §'ftp://example.com'}}"), "state.config.address", "must be a URL"),
    "unlock alone": (END, state("{backend: http, config: {§unlock_address: 'https://example.com/l'}}"), "state.config.unlock_address", "has no meaning without lock_address"),
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
    old, new, path, words = row
    assert LOCAL.count(old) >= 1
    text = LOCAL.replace(old, new, 1)
    line = column = None
    if MARK in text:
        text, line, column = marked(text)
    (found,) = findings(text)
    assert found[2] == path
    assert words in found[3]
    assert "hunter2" not in found[3], "a secret must not be shown"
    if line is not None:
        assert found[:2] == (line, column)


@pytest.mark.parametrize(
    ("backend", "secret"), [(name, secret) for name, backend in BACKENDS.items() for secret in backend.secrets]
)
def test_no_secret_may_stand_among_the_settings_of_a_backend(backend: str, secret: str) -> None:
    needed = "".join(f"{key}: {example}, " for key, example in BACKENDS[backend].required.items())
    text, line, column = marked(LOCAL + f"state: {{backend: {backend}, config: {{{needed}{MARK}{secret}: hunter2}}}}\n")
    ((found_line, found_column, path, words),) = findings(text)
    assert (found_line, found_column, path) == (line, column, f"state.config.{secret}")
    assert words.startswith("is a secret, which this file must not contain. Delete the line, and ")
    assert "hunter2" not in words


def test_a_setting_without_a_value_is_not_there() -> None:
    text = LOCAL + "state: {backend: oci, config: {bucket: x, namespace: null}}\n"
    assert {found[2] for found in findings(text)} == {"state.config.namespace"}


def with_rdma(rdma_cidr: str, private: str = "10.77.1.0/24", *more: str) -> str:
    text = LOCAL.replace(NETWORK, f"{NETWORK}  rdma_cidr: {rdma_cidr}\n").replace("10.77.1.0/24", private)
    return text.replace(POOL, pool("rdma_addressing: cloud-init", *more))


def test_the_rdma_range_holds_a_block_for_each_interface() -> None:
    interfaces = len(shapes.get("BM.GPU4.8").rdma_interfaces)
    assert interfaces == 16
    text, line, column = marked(with_rdma(f"{MARK}192.168.0.0/21"))
    ((found_line, found_column, path, words),) = findings(text)
    assert (found_line, found_column, path) == (line, column, "network.rdma_cidr")
    assert "192.168.0.0/21 has 2048 addresses, 4096 are needed: pool compute has 16 RDMA interfaces" in words
    assert "Use a /20 or larger" in words
    assert loads(with_rdma("192.168.0.0/20")).network.rdma_cidr == "192.168.0.0/20"
    assert loads(with_rdma("192.168.0.0/21", "10.77.1.0/25")).pools["compute"].rdma_addressing == "cloud-init"


def test_what_no_pool_uses_may_overlap_as_long_as_it_is_a_default() -> None:
    """A VCN in 192.168.0.0/16 is fine where no node has RDMA, and an error where one has."""
    text = LOCAL.replace("10.77.", "192.168.")
    assert [found[2] for found in findings(text)] == ["network.rdma_cidr"]
    assert loads(text.replace(POOL, pool("rdma: false"))).network.vcn_cidr == "192.168.0.0/16"


def test_unknown_interfaces_get_no_addresses() -> None:
    unknown = next(
        shape for shape in shapes.catalogue().values() if shape.rdma and not shape.rdma_interfaces and not shape.flex
    )
    text = LOCAL.replace("shape: BM.GPU4.8", f"shape: {unknown.name}\n    rdma_addressing: {MARK}cloud-init")
    text, line, column = marked(text)
    ((found_line, found_column, _, words),) = findings(text)
    assert (found_line, found_column) == (line, column)
    assert f"the names of the RDMA interfaces of {unknown.name} are not known. Write plugin" in words


def test_a_bastion_takes_an_address_and_a_server_of_homes_gives_some_back() -> None:
    """Six nodes, the controller, a builder and what the cloud keeps are 11; a mount target takes three, a bastion one."""
    tight = LOCAL.replace("10.77.1.0/24", "10.77.1.0/28")
    private = tight.replace(NETWORK, "  access: bastion\n")
    assert loads(tight)
    assert loads(private)
    crowded = private.replace("max_count: 4", "max_count: 6")
    ((_, _, path, words),) = findings(crowded)
    assert path == "network.private_subnet_cidr"
    assert (
        "17 are needed: 8 nodes, 1 controller, 1 to bake an image, 3 for the mount target, 1 for the bastion" in words
    )
    assert loads(crowded.replace(HOME, home("server: 10.77.0.9")))


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


@pytest.mark.parametrize(
    "config",
    [
        "{backend: oci, config: {bucket: a, namespace: b, key: x/y.tfstate, region: eu-frankfurt-1, auth: SecurityToken}}",
        "{backend: s3, config: {bucket: a, region: us-east-1, use_path_style: true, max_retries: 3}}",
        "{backend: s3, config: {bucket: a, namespace: b}}",
        "{backend: http, config: {address: 'https://example.com/s', lock_address: 'https://example.com/l', "
        "unlock_address: 'https://example.com/l', lock_method: POST, username: me}}",
        "{backend: http}",
        "{backend: local}",
    ],
)
def test_states_elsewhere(config: str) -> None:
    assert loads(f"{LOCAL}state: {config}\n").state.backend in config


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
    text = LOCAL
    for row in ("own tag", "no public subnet", "two homes", "node 0", "unknown backend"):
        old, new, _, _ = ROWS[row]
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
