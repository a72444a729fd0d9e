"""The form of a stack: which keys of cluster.yml it asks for, in which groups, and when a field is shown.

Descriptions, types, bounds, choices, patterns and defaults come from the model of cluster.yml (`facts_of`); here is
what the model does not have: the selection, the groups, short titles, controls of the console, and first values for
keys without a default.

Source of the controls: Oracle, "Extend Console Pages Using Schema Documents", with its meta schema.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

from pydantic import TypeAdapter
from pydantic.fields import FieldInfo

from gpucluster import shapes
from gpucluster.spec.messages import field_at
from gpucluster.spec.sections.machines import CONTROLLER_SHAPE

#: Pools that can be described: a form has no list that grows. Each comes after a box that shows it.
POOLS = 3
#: The control for public keys of ssh.
SSH_KEYS = "oci:core:ssh:publickey"
FLEXIBLE = tuple(name for name, shape in shapes.catalogue().items() if shape.flex)
#: Shapes of which a pool can be described: a rack needs the OCID of its memory fabric, for which there is no field.
_SHAPES = tuple(name for name, shape in shapes.catalogue().items() if not shape.memory_fabric)

Kind = Literal["text", "choice", "flag", "number", "list"]


@dataclass(frozen=True)
class When:
    """A condition on another field: a box that is ticked, or a choice among some values."""

    field: str
    values: tuple[str, ...] = ()


@dataclass(frozen=True)
class Field:
    """One field of the form.

    Args:
        name: of the variable of Terraform.
        key: of cluster.yml that it decides; empty for boxes that only show other fields.
        kind: of its value; a `list` is one text, whose parts are separated by commas or line breaks.
        control: the type in the console, if it is another one than that of the value.
        depends_on: what the console needs to fill in the control, by its names, with the fields that have it.
        required: whether the console wants a value.
        when: all conditions under which the field is shown, and its key written.
    """

    name: str
    title: str
    description: str
    kind: Kind
    key: str = ""
    default: Any = None
    control: str = ""
    depends_on: Mapping[str, str] = field(default_factory=dict)
    required: bool = False
    choices: tuple[str, ...] = ()
    minimum: float | None = None
    maximum: float | None = None
    pattern: str = ""
    when: tuple[When, ...] = ()


@dataclass(frozen=True)
class Group:
    """A box of the form with a title."""

    title: str
    fields: tuple[Field, ...]


_COMPARTMENT = {"compartmentId": "compartment"}
_EXISTING = When("use_existing_vcn")
_PUBLIC = When("access", ("public",))


def groups() -> tuple[Group, ...]:
    """The whole form."""
    pools = [_pool(number) for number in range(1, POOLS + 1)]
    return (_cluster(), _network(), _controller(), _login(), *pools, _storage(), _software(), _user())


def fields() -> Iterator[Field]:
    """Every field, in the order of the form."""
    for group in groups():
        yield from group.fields


# --- groups -----


def _cluster() -> Group:
    return Group(
        "Cluster",
        (
            _field("name", "Name of the cluster", default="gpu"),
            # The console fills in these two, by their names.
            _field("cloud.region", "Region", name="region", required=True),
            _field(
                "cloud.compartment_id", "Compartment", name="compartment", control="oci:identity:compartment:id",
                default="${compartment_ocid}", required=True,
            ),
            _field(
                "cloud.availability_domain", "Availability domain", control="oci:identity:availabilitydomain:name",
                depends_on=_COMPARTMENT, required=True,
            ),
            _field("ssh.public_keys", "Public SSH keys of operators", control=SSH_KEYS, required=True),
            _field("scheduler", "Scheduler", choices=("slurm", "none")),
        ),
    )  # fmt: skip


def _network() -> Group:
    vcn = {**_COMPARTMENT, "vcnId": "vcn_id"}
    return Group(
        "Network",
        (
            _field("network.access", "Access to the controller", name="access"),
            _field("network.ssh_allowed_cidrs", "Networks that may use ssh", required=True),
            _field("network.vcn_cidr", "Range of the VCN", default="10.0.0.0/16", required=True),
            _field(
                "network.public_subnet_cidr", "Range of the public subnet", default="10.0.0.0/24", required=True,
                when=(_PUBLIC,),
            ),
            _field(
                "network.private_subnet_cidr", "Range of the private subnet", default="10.0.8.0/21", required=True
            ),
            _box("use_existing_vcn", "Use an existing VCN", "Its ranges, and those of its subnets, are those above."),
            _field(
                "network.vcn_id", "VCN", name="vcn_id", control="oci:core:vcn:id", depends_on=_COMPARTMENT,
                required=True, when=(_EXISTING,),
            ),
            _field(
                "network.public_subnet_id", "Public subnet", control="oci:core:subnet:id", depends_on=vcn,
                required=True, when=(_EXISTING, _PUBLIC),
            ),
            _field(
                "network.private_subnet_id", "Private subnet", control="oci:core:subnet:id", depends_on=vcn,
                required=True, when=(_EXISTING,),
            ),
        ),
    )  # fmt: skip


def _controller() -> Group:
    return Group(
        "Controller",
        (
            *_machine("controller", "controller", FLEXIBLE, CONTROLLER_SHAPE, ocpus=4, memory_gb=32),
            *_platform_image("controller", "controller"),
        ),
    )


def _login() -> Group:
    some = When("login_nodes")
    machine = _machine("login", "login", FLEXIBLE, CONTROLLER_SHAPE, ocpus=4, memory_gb=32, when=(some,))
    count = _field("login.count", "Number of login nodes", name="login_count", default=1, when=(some,))
    box = _box("login_nodes", "Login nodes", "Users log in there, and not on the controller.")
    return Group("Login nodes", (box, count, *machine))


def _pool(number: int) -> Group:
    prefix, key = f"pool_{number}", f"pools.{{{number}}}"
    when = (When(f"{prefix}_wanted"),) if number > 1 else ()
    custom, listing = When(f"{prefix}_image", ("custom",)), When(f"{prefix}_image", ("listing",))
    first = (_box(f"{prefix}_wanted", f"Pool {number}", "Nodes of another shape."),) if number > 1 else ()
    name = Field(
        f"{prefix}_name", "Name of the pool", "Also the name of its Slurm partition.", "text", key=f"{key}",
        default="compute" if number == 1 else f"compute-{number}", required=True, when=when,
        pattern=r"^[a-z]([a-z0-9-]{0,18}[a-z0-9])?$",
    )  # fmt: skip
    image = Field(
        f"{prefix}_image", "Image", "An image of the marketplace, or an image of your own.", "choice",
        default="listing", choices=("listing", "custom"), when=when,
    )  # fmt: skip
    return Group(
        f"Pool {number}",
        (
            *first,
            name,
            *_machine(prefix, key, _SHAPES, "BM.GPU4.8", ocpus=8, memory_gb=64, when=when),
            _field(f"{key}.count", "Permanent nodes", name=f"{prefix}_count", default=2, when=when),
            _field(
                f"{key}.max_count", "Highest number of nodes", name=f"{prefix}_max_count", default=2, when=when),
            image,
            _field(
                f"{key}.image.listing", "Listing", name=f"{prefix}_listing", when=(*when, listing),
                default="Oracle Linux - GPU Cluster Networking Image", required=True),
            _field(
                f"{key}.image.listing_version", "Version of the listing", name=f"{prefix}_listing_version",
                default="*-GPU-570-OPEN-*", when=(*when, listing)),
            _field(
                f"{key}.image.ocid", "Image of your own", name=f"{prefix}_image_id", control="oci:core:image:id",
                depends_on=_COMPARTMENT, required=True, when=(*when, custom)),
            _field(
                f"{key}.image.login_user", "User of the image", name=f"{prefix}_login_user", default="opc",
                required=True, when=when),
        ),
    )  # fmt: skip


def _storage() -> Group:
    return Group(
        "Storage",
        (
            _field("storage.home.mount_path", "Path of the home share"),
            _field("storage.local_disk.enabled", "Mount the NVMe drives of nodes"),
        ),
    )


def _software() -> Group:
    slurm = When("scheduler", ("slurm",))
    return Group(
        "Software",
        (
            Field(
                "enroot",
                "Containers in jobs",
                "Enroot with Pyxis: srun --container-image.",
                "flag",
                key="containers.runtimes",
                default=False,
                when=(slurm,),
            ),
            _field("monitoring.enabled", "Monitoring", name="monitoring"),
            _field("monitoring.grafana", "Grafana", when=(When("monitoring"),)),
            _field("slurm.max_job_hours", "Longest job, in hours", default=168, when=(slurm,)),
            _field("slurm.login_needs_job", "Login to nodes only with a job", when=(slurm,)),
        ),
    )


def _user() -> Group:
    wanted = When("add_user")
    of_user: Mapping[str, Any] = {"when": (wanted,), "required": True}
    return Group(
        "First user",
        (
            _box("add_user", "Add a user", "Others: gpucluster user add."),
            _field("users.people.0.name", "Login name", name="user_name", **of_user),
            _field("users.people.0.full_name", "Full name", name="user_full_name", **{**of_user, "required": False}),
            _field(
                "users.people.0.ssh_public_keys", "Public SSH keys", name="user_keys",
                control=SSH_KEYS, **of_user,
            ),
        ),
    )  # fmt: skip


# --- what several groups have -----


def _machine(
    prefix: str,
    key: str,
    names: tuple[str, ...],
    default: str,
    *,
    ocpus: int,
    memory_gb: int,
    when: tuple[When, ...] = (),
) -> tuple[Field, ...]:
    shape = f"{prefix}_shape"
    flexible = (*when, When(shape, FLEXIBLE))
    return (
        _field(f"{key}.shape", "Shape", name=shape, choices=names, default=default, when=when),
        _field(f"{key}.ocpus", "OCPUs", name=f"{prefix}_ocpus", default=ocpus, when=flexible),
        _field(
            f"{key}.memory_gb", "Memory in GB", name=f"{prefix}_memory_gb", default=memory_gb, when=flexible),
        _field(
            f"{key}.boot_volume_gb", "Boot volume in GB", name=f"{prefix}_boot_volume_gb", when=when),
    )  # fmt: skip


def _platform_image(prefix: str, key: str) -> tuple[Field, ...]:
    return (
        _field(
            f"{key}.image.operating_system", "Operating system", name=f"{prefix}_operating_system",
            choices=("Canonical Ubuntu", "Oracle Linux"), default="Canonical Ubuntu",
        ),
        _field(
            f"{key}.image.version", "Version of the operating system", name=f"{prefix}_system_version",
            default="24.04", required=True,
        ),
    )  # fmt: skip


def _box(name: str, title: str, description: str, *, when: tuple[When, ...] = ()) -> Field:
    return Field(name, title, description, "flag", default=False, when=when)


def _field(key: str, title: str, *, name: str = "", **settings: Any) -> Field:
    """A field for a key, with what the model has of the key. `{1}` in it is the name of the first pool.

    Raises:
        LookupError: cluster.yml has no such key.
    """
    path = tuple(int(part) if part.isdecimal() else part for part in key.split("."))
    info = field_at(path)
    if info is None:
        raise LookupError(f"cluster.yml has no key {key}")
    facts = {**facts_of(info), **settings}
    if facts["choices"]:
        facts["kind"] = "choice"
    return Field(name or key.replace(".", "_"), title, key=key, **facts)


def facts_of(info: FieldInfo) -> dict[str, Any]:
    """What a field of the model states about itself, as arguments of a Field."""
    annotation: Any = Annotated[(info.annotation, *info.metadata)] if info.metadata else info.annotation
    whole: dict[str, Any] = TypeAdapter(annotation).json_schema()
    schema = next((each for each in whole.get("anyOf", ()) if each.get("type") != "null"), whole)
    kinds: Mapping[str, Kind] = {"boolean": "flag", "integer": "number", "number": "number", "array": "list"}
    default = None if info.is_required() else info.get_default(call_default_factory=True)
    return {
        "description": _plain(info.description or ""),
        "kind": kinds.get(schema.get("type", "string"), "text"),
        "default": default if isinstance(default, (str, bool, int)) and default != "" else None,
        "choices": tuple(each for each in schema.get("enum", ()) if each),
        "minimum": schema.get("minimum"),
        "maximum": schema.get("maximum"),
        "pattern": schema.get("pattern", ""),
    }


def _plain(description: str) -> str:
    """A description without the marks of Markdown, which the console would show."""
    return description.replace("`", "")
