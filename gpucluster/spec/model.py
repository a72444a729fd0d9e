"""ClusterSpec: what a cluster.yml may say, key by key. Rules between keys: rules.py; words for faults: wording.py."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal, cast

from pydantic import BaseModel, ConfigDict, Field, PrivateAttr, model_validator

from gpucluster import shapes

VERSION = 1
LOCAL_REGION = "local-1"
LOCAL_IMAGE = {"operating_system": "Debian", "version": "13"}
CONTROLLER_SHAPE = "VM.Standard.E5.Flex"
CONTROLLER_OCPUS = 4
CONTROLLER_MEMORY_GB = 32

#: The user that an image lets in, by the operating system's name in OCI's catalogue of images.
LOGIN_USERS = {"Oracle Linux": "opc", "Canonical Ubuntu": "ubuntu", "Debian": "debian"}

PoolKind = Literal["cluster_network", "compute_cluster", "instances"]

NAME_PATTERN = r"^[a-z]([a-z0-9-]{0,13}[a-z0-9])?$"
POOL_NAME_PATTERN = r"^[a-z]([a-z0-9-]{0,18}[a-z0-9])?$"
USER_NAME_PATTERN = r"^[a-z_][a-z0-9_-]{0,31}$"
PATH_PATTERN = r"^(/[A-Za-z0-9._-]+)+$"
REGION_PATTERN = r"^[a-z]+(-[a-z0-9]+)*-[0-9]+$"
COMPARTMENT_PATTERN = r"^ocid1\.(compartment|tenancy)\.[a-z0-9-]+\.[a-z0-9-]*\.[A-Za-z0-9]+$"
IMAGE_PATTERN = r"^ocid1\.image\.[a-z0-9-]+\.[a-z0-9-]*\.[A-Za-z0-9]+$"
SLURM_CLUSTER_PATTERN = r"^[a-z][a-z0-9_-]{0,39}$"
TIMEZONE_PATTERN = r"^[A-Za-z][A-Za-z0-9_+-]*(/[A-Za-z0-9_+-]+){0,2}$"
PYTHON_PATTERN = r"^3\.(1[1-9]|[2-9][0-9])$"
WORD_PATTERN = r"^[^\s]+$"

Name = Annotated[str, Field(pattern=NAME_PATTERN)]
UserName = Annotated[str, Field(pattern=USER_NAME_PATTERN)]
AbsolutePath = Annotated[str, Field(pattern=PATH_PATTERN, max_length=255)]
Cidr = Annotated[str, Field(pattern=WORD_PATTERN)]
FileName = Annotated[str, Field(min_length=1, max_length=4096)]
Count = Annotated[int, Field(ge=0, le=10_000)]
Gigabytes = Annotated[int, Field(ge=50, le=32768)]
Number = Annotated[int, Field(ge=1, le=1_000_000)]
Seconds = Annotated[float, Field(gt=0, le=1_000_000)]
Price = Annotated[float, Field(gt=0, le=1_000_000_000)]
# Below are accounts of the system, of its packages, and the login user of the image.
Id = Annotated[int, Field(ge=2000, le=2_000_000_000)]


#: What `autoscaler.times` may set. The autoscaler has them and their defaults (policy.Times); a test compares the two.
TIME_NAMES = frozenset(
    {
        "tick",
        "busy_tick",
        "listing_lag",
        "orphan_grace",
        "launch_deadline",
        "join_deadline",
        "gang_retry_window",
        "retry_pause",
        "backoff",
        "backoff_limit",
        "cool_down",
        "cool_down_limit",
        "limit_cool_down",
        "unbacked_after",
        "silent_grace",
        "drain_ahead",
    }
)


@dataclass(frozen=True)
class Resolved:
    """What the file alone does not say: where it lies, and what the files that it names hold: keys, and prices."""

    file: Path
    directory: Path
    public_keys: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    prices: Mapping[str, float] = field(default_factory=dict)


class _Part(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, str_strip_whitespace=False)


class Cloud(_Part):
    """Which cloud, and where in it."""

    provider: Literal["local", "oci"] = Field(
        description="`local`: containers on this machine. `oci`: Oracle Cloud Infrastructure.", examples=["local"]
    )
    region: str = Field(
        default="",
        pattern=REGION_PATTERN,
        description="Region. Needed with provider oci; the local cloud has one region, `local-1`.",
        examples=["us-ashburn-1"],
    )
    compartment_id: str | None = Field(
        default=None,
        pattern=COMPARTMENT_PATTERN,
        description="OCID of the compartment that everything is created in. Provider oci only, and needed there.",
        examples=["ocid1.compartment.oc1..exampleuniqueid"],
    )
    availability_domain: str | None = Field(
        default=None,
        pattern=WORD_PATTERN,
        description="Availability domain, such as `Uocm:US-ASHBURN-AD-1`. `null`: the first of the region.",
    )
    profile: str = Field(
        default="DEFAULT",
        pattern=WORD_PATTERN,
        description="Profile in the OCI configuration file of the operator. Provider oci only.",
    )


class Network(_Part):
    """The virtual cloud network: a public subnet for the controller, a private one for the nodes. IPv4."""

    vcn_cidr: Cidr = Field(description="The whole network, /16 to /30.", examples=["10.0.0.0/16"])
    public_subnet_cidr: Cidr = Field(
        description="Subnet of the controller, inside the network.", examples=["10.0.0.0/24"]
    )
    private_subnet_cidr: Cidr = Field(
        description="Subnet of the nodes and the shared home, inside the network. It must hold every pool at its "
        "maximum.",
        examples=["10.0.1.0/24"],
    )
    ssh_allowed_cidrs: tuple[Cidr, ...] = Field(
        min_length=1,
        description="From where ssh to the controller is let in. There is no default, and the whole internet is "
        "refused: no network larger than /8.",
        examples=[["203.0.113.0/24"]],
    )


class Ssh(_Part):
    """The operator's key pair, with which gpucluster logs in."""

    public_key_file: FileName | None = Field(
        default=None,
        description="Public key; relative to this file, `~` is your home. `null` with provider local: gpucluster makes "
        "a pair of its own.",
        examples=["~/.ssh/id_ed25519.pub"],
    )
    private_key_file: FileName | None = Field(
        default=None, description="Private key. `null`: the name of the public one without `.pub`."
    )
    _directory: Path | None = PrivateAttr(default=None)
    _public_key: str | None = PrivateAttr(default=None)

    def model_post_init(self, context: Any) -> None:
        """Take what the file names hold from the context of the validation."""
        if isinstance(context, Resolved):
            self._directory = context.directory
            if self.public_key_file is not None:
                self._public_key = next(iter(context.public_keys.get(self.public_key_file, ())), None)

    @property
    def public_key(self) -> str | None:
        """The text of the operator's public key; None if gpucluster is to make a pair."""
        return self._public_key

    @property
    def private_key_path(self) -> Path | None:
        """Where the private key lies; None if gpucluster is to make a pair."""
        if self.public_key_file is None:
            return None
        name = self.private_key_file or self.public_key_file.removesuffix(".pub")
        return located(name, self._directory or Path())


class Image(_Part):
    """An image: either the newest of an operating system, or one by its OCID."""

    operating_system: str | None = Field(
        default=None,
        min_length=1,
        max_length=64,
        description="Name as in OCI's catalogue of images: `Oracle Linux`, `Canonical Ubuntu`, `Debian`.",
    )
    version: str | None = Field(
        default=None, min_length=1, max_length=64, description='Its version, in quotes: `"24.04"`.'
    )
    ocid: str | None = Field(
        default=None, pattern=IMAGE_PATTERN, description="OCID of an image, instead of the two keys above."
    )
    login_user: UserName = Field(
        default="",
        description="The user that the image lets in. Default by operating system: `opc`, `ubuntu`, `debian`. Needed "
        "with ocid.",
    )


class _Machine(_Part):
    shape: str
    ocpus: Number | None = Field(
        default=None, description="Cores. Flexible shapes only, and needed there.", examples=[4]
    )
    memory_gb: Number | None = Field(
        default=None, description="Memory in GB. Flexible shapes only, and needed there.", examples=[32]
    )
    boot_volume_gb: Gigabytes = Field(default=256, description="Size of the boot volume in GB.")
    # None is never seen: derived() fills it in, or the rules refuse the file.
    image: Image = Field(
        default_factory=cast("Callable[[], Image]", lambda: None),
        description="Operating system. With provider local Debian 13 unless said; with provider oci it must be said.",
    )


class Controller(_Machine):
    """The one machine that is always there: Slurm's controller, LDAP, login by ssh."""

    shape: str = Field(default=CONTROLLER_SHAPE, description="Shape.", examples=[CONTROLLER_SHAPE])


class Home(_Part):
    """The file system that every machine mounts."""

    mount_path: AbsolutePath = Field(
        default="/mnt/home", description="Where machines mount it; users' homes lie in it."
    )
    export_path: AbsolutePath = Field(default="/mnt/home", description="Its name on the file server.")


class Storage(_Part):
    """File systems."""

    home: Home = Field(default_factory=Home, description="The shared home.")


class Pool(_Machine):
    """Nodes of one shape, in one Slurm partition."""

    shape: str = Field(description="Shape of every node.", examples=["BM.GPU4.8"])
    count: Count = Field(default=0, description="Nodes that are always there.", examples=[2])
    max_count: Count = Field(
        default=0,
        description="Nodes there may be at most; those above `count` exist while jobs need them. Default: `count`.",
    )
    idle_timeout: Number = Field(
        default=600, description="Seconds without a job after which an elastic node is removed."
    )
    partition: str = Field(
        default="",
        pattern=POOL_NAME_PATTERN,
        description="Slurm partition of its nodes; pools may share one. Default: the pool's name.",
        examples=["gpu"],
    )
    availability_domain: str | None = Field(
        default=None,
        pattern=WORD_PATTERN,
        description="Availability domain of its nodes. `null`: that of the cluster.",
        examples=["Uocm:US-ASHBURN-AD-2"],
    )
    default: bool = Field(
        default=False, description="Whether jobs that name no partition come here. Default: the first pool."
    )

    @property
    def hardware(self) -> shapes.Shape:
        """The shape's facts."""
        return shapes.get(self.shape)

    @property
    def elastic(self) -> bool:
        """Whether nodes come and go."""
        return self.max_count > self.count

    @property
    def elastic_count(self) -> int:
        """How many of its nodes come and go, at most."""
        return max(self.max_count - self.count, 0)

    @property
    def kind(self) -> PoolKind:
        """What its nodes stand in.

        Members of a compute cluster come one by one, so elastic RDMA pools need that (an empty one has it too); a
        cluster network is for pools whose nodes stay. Without RDMA neither is needed.
        """
        if not self.hardware.rdma:
            return "instances"
        return "cluster_network" if self.count and not self.elastic else "compute_cluster"


class Person(_Part):
    """Somebody who may log in."""

    name: UserName = Field(description="Login name.", examples=["alice"])
    full_name: str = Field(
        default="", max_length=100, description="Full name. Default: the login name.", examples=["Alice Example"]
    )
    uid: Id | None = Field(default=None, description="User id; `null`: the next that is free from `first_uid` on.")
    ssh_public_keys: tuple[str, ...] = Field(
        default=(), description="Public keys, as in a .pub file.", examples=[["ssh-ed25519 AAAA... alice@laptop"]]
    )
    ssh_public_key_files: tuple[FileName, ...] = Field(
        default=(), description="Files with public keys, relative to this file.", examples=[["alice.pub"]]
    )
    generate_key: bool = Field(
        default=False,
        description="Instead of a key of theirs: gpucluster makes a pair in its state directory. Provider local only.",
    )
    _file_keys: tuple[str, ...] = PrivateAttr(default=())

    def model_post_init(self, context: Any) -> None:
        """Take what the key files hold from the context of the validation."""
        if isinstance(context, Resolved):
            held = (context.public_keys.get(name, ()) for name in self.ssh_public_key_files)
            self._file_keys = tuple(key for keys in held for key in keys)

    @property
    def ssh_keys(self) -> tuple[str, ...]:
        """Every public key of this person, those in files included, none twice."""
        return tuple(dict.fromkeys((*(key.strip() for key in self.ssh_public_keys), *self._file_keys)))


class Users(_Part):
    """Who may log in. Their accounts live in LDAP on the controller."""

    group: UserName = Field(default="privilege", description="The group of everybody listed here.")
    gid: Id = Field(default=9876, description="Its id.")
    first_uid: Id = Field(default=10001, description="The lowest user id.")
    people: tuple[Person, ...] = Field(default=(), max_length=1000, description="The users.")


class Slurm(_Part):
    """The scheduler."""

    cluster_name: str = Field(
        default="", pattern=SLURM_CLUSTER_PATTERN, description="Name of the cluster in Slurm. Default: `name`."
    )
    accounting: bool = Field(default=True, description="Whether finished jobs are recorded (slurmdbd).")
    default_partition: str = Field(
        default="",
        description="Partition of jobs that name none. Default: that of the pool with `default: true`, or the first.",
    )
    extra_config: dict[str, Any] = Field(
        default_factory=dict,
        max_length=100,
        description="Further lines of slurm.conf: key and value. Keys that gpucluster sets itself are refused.",
        examples=[{"SchedulerParameters": "bf_interval=30"}],
    )


class Autoscaler(_Part):
    """Limits of elastic nodes, over all pools, and the pace of what launches them."""

    max_nodes: Number | None = Field(
        default=None, description="Elastic nodes there may be at once. `null`: what the pools allow.", examples=[16]
    )
    max_launches_per_hour: Number = Field(
        default=500, description="Launches in an hour; the rest waits. A rail against a cluster that runs amok."
    )
    max_cost_per_hour: Price | None = Field(
        default=None,
        description="What elastic nodes may cost in an hour, in the currency of the price file. `null`: no limit.",
        examples=[250.0],
    )
    prices_file: FileName | None = Field(
        default=None,
        description="YAML file with the price of an hour by shape, such as `BM.GPU4.8: 24.4`; relative to this file.",
        examples=["prices.yml"],
    )
    times: dict[str, Seconds] = Field(
        default_factory=dict,
        description="Seconds by name, for who knows why: "
        + ", ".join(f"`{name}`" for name in sorted(TIME_NAMES))
        + ".",
        examples=[{"cool_down": 120}],
    )
    _prices: Mapping[str, float] = PrivateAttr(default_factory=dict)

    def model_post_init(self, context: Any) -> None:
        """Take the prices from the context of the validation."""
        if isinstance(context, Resolved):
            self._prices = dict(context.prices)

    @property
    def prices(self) -> Mapping[str, float]:
        """The price of an hour by shape; empty without a price file."""
        return self._prices


class Software(_Part):
    """What is on every machine."""

    timezone: str = Field(default="UTC", pattern=TIMEZONE_PATTERN, description="Time zone.", examples=["Europe/Berlin"])
    wheels: FileName | None = Field(
        default=None,
        description="Directory with the Python packages (wheels) that the controller of elastic pools needs, for "
        "places without a package index; relative to this file. `null`: they are downloaded, once.",
        examples=["wheels"],
    )
    controller_python: str | None = Field(
        default=None,
        pattern=PYTHON_PATTERN,
        description="Version of Python on the controller of elastic pools, 3.11 or newer. `null`: that of its image, "
        "where it is known.",
        examples=["3.12"],
    )
    _directory: Path | None = PrivateAttr(default=None)

    def model_post_init(self, context: Any) -> None:
        """Remember where the file lies."""
        if isinstance(context, Resolved):
            self._directory = context.directory

    @property
    def wheels_directory(self) -> Path | None:
        """Where `wheels` is; None if it was not said."""
        return None if self.wheels is None else located(self.wheels, self._directory or Path()).absolute()


class ClusterSpec(_Part):
    """One cluster, as wanted.

    Made by load() or loads(): every value is checked, and every default filled in.
    """

    version: Literal[1] = Field(description="Version of this file format.", examples=[1])
    name: Name = Field(description="Name of the cluster: letters, digits and `-`, at most 15.", examples=["demo"])
    cloud: Cloud = Field(description="Which cloud.")
    network: Network = Field(description="The network.")
    ssh: Ssh = Field(default_factory=Ssh, description="The operator's keys.")
    controller: Controller = Field(
        default_factory=Controller, description="The controller. Default: a small flexible machine."
    )
    storage: Storage = Field(default_factory=Storage, description="File systems.")
    pools: dict[str, Pool] = Field(min_length=1, max_length=50, description="The pools by name.")
    users: Users = Field(default_factory=Users, description="The users.")
    slurm: Slurm = Field(default_factory=Slurm, description="The scheduler.")
    autoscaler: Autoscaler = Field(default_factory=Autoscaler, description="Limits of elastic nodes.")
    software: Software = Field(default_factory=Software, description="Software on every machine.")
    _file: Path = PrivateAttr(default=Path("cluster.yml"))
    _source: Path = PrivateAttr(default=Path())

    @model_validator(mode="before")
    @classmethod
    def _fill_in(cls, data: Any) -> Any:
        return derived(data) if isinstance(data, dict) else data

    def model_post_init(self, context: Any) -> None:
        """Remember where the file lies."""
        if isinstance(context, Resolved):
            self._file, self._source = context.file, context.directory

    @property
    def file(self) -> Path:
        """The file that this came from."""
        return self._file

    @property
    def source(self) -> Path:
        """The directory of that file; relative file names in it count from here."""
        return self._source

    @property
    def elastic_pools(self) -> dict[str, Pool]:
        """The pools whose nodes come and go, by name."""
        return {name: pool for name, pool in self.pools.items() if pool.elastic}

    @property
    def partitions(self) -> dict[str, tuple[str, ...]]:
        """The names of the pools of each Slurm partition, in the order of the file."""
        found: dict[str, tuple[str, ...]] = {}
        for name, pool in self.pools.items():
            found[pool.partition] = (*found.get(pool.partition, ()), name)
        return found


def located(name: str, directory: Path) -> Path:
    """The file that `name` means in a cluster.yml of `directory`. Raises RuntimeError for `~nobody`."""
    return directory / Path(name).expanduser()


def derived(raw: Mapping[str, Any]) -> dict[str, Any]:
    """`raw` and the values that follow from others in it. What has the wrong type is left for the checks to find."""
    spec = dict(raw)
    cloud, pools, users = spec.get("cloud"), spec.get("pools"), spec.get("users")
    local = isinstance(cloud, dict) and cloud.get("provider") == "local"
    if isinstance(cloud, dict) and local:
        spec["cloud"] = {"region": LOCAL_REGION, **cloud}
    controller = spec.get("controller", {})
    if isinstance(controller, dict):
        if "shape" not in controller:
            small = {"shape": CONTROLLER_SHAPE, "ocpus": CONTROLLER_OCPUS, "memory_gb": CONTROLLER_MEMORY_GB}
            controller = {**small, **controller}
        spec["controller"] = _with_image(controller, local)
    slurm = spec.get("slurm", {})
    if isinstance(slurm, dict):
        spec["slurm"] = slurm = {"cluster_name": spec.get("name", ""), **slurm}
    if isinstance(pools, dict):
        domain = cloud.get("availability_domain") if isinstance(cloud, dict) else None
        spec["pools"] = pools = {name: _pool(name, pool, domain, local) for name, pool in pools.items()}
        if isinstance(slurm, dict):
            _agree_on_default(slurm, pools)
    if isinstance(users, dict) and isinstance(users.get("people"), tuple):
        spec["users"] = {**users, "people": tuple(_person(person) for person in users["people"])}
    return spec


def _with_image(machine: dict[str, Any], local: bool) -> dict[str, Any]:
    if local and "image" not in machine:
        machine = {**machine, "image": LOCAL_IMAGE}
    image = machine.get("image")
    if isinstance(image, dict) and "login_user" not in image:
        system = image.get("operating_system")
        login_user = LOGIN_USERS.get(system) if isinstance(system, str) else None
        if login_user:
            return {**machine, "image": {**image, "login_user": login_user}}
    return machine


def _pool(name: Any, pool: Any, domain: Any, local: bool) -> Any:
    if not isinstance(pool, dict):
        return pool
    # What is unfit in another key is told there, and not once more here.
    filled = {"max_count": pool.get("count", 0), "partition": name}
    if isinstance(domain, str) and re.fullmatch(WORD_PATTERN, domain):
        filled["availability_domain"] = domain
    return _with_image({**filled, **pool}, local)


def _person(person: Any) -> Any:
    return {"full_name": person["name"], **person} if isinstance(person, dict) and "name" in person else person


def _agree_on_default(slurm: dict[str, Any], pools: dict[str, Any]) -> None:
    """Let slurm.default_partition and the pool's `default` say the same, whichever was written."""
    whole = {name: pool for name, pool in pools.items() if isinstance(pool, dict)}
    chosen = [name for name, pool in whole.items() if pool.get("default") is True]
    if "default_partition" not in slurm:
        first = (chosen or list(pools) or [""])[0]
        slurm["default_partition"] = whole[first].get("partition", first) if first in whole else first
    wanted = slurm["default_partition"]
    inside = [name for name, pool in whole.items() if pool.get("partition") == wanted]
    if not chosen and inside:
        pools[inside[0]] = {**pools[inside[0]], "default": True}
