"""Decides the machines and their images, which the stack describes for each role with the same set of variables."""

from __future__ import annotations

import re

from gpucluster import shapes
from gpucluster.resource_manager.draft import Draft
from gpucluster.resource_manager.stack import Stack
from gpucluster.resource_manager.table import variables
from gpucluster.spec.sections.fields import IMAGE_PATTERN
from gpucluster.spec.sections.machines import CONTROLLER_SHAPE

#: In the stack a flexible machine has so much memory for each OCPU, unless it has a size of its own.
_GB_PER_OCPU = 16
#: Of the controller and login nodes, where the stack's shape is not known here and has a size of its own.
_OCPUS, _MEMORY_GB = 4, 64
_SMALLEST_BOOT_GB = 50
#: Names of the stack for versions of the two listings: the system, and the driver of the GPUs.
_LISTING = re.compile(r"(?P<kind>HPC|GPU)_OL(?P<system>[0-9]+)(?:_(?P<vendor>NV|AMD)(?P<driver>[0-9]+))?")
_DRIVERS = {"NV": "*-GPU-{}-*", "AMD": "*-AMD-ROCM-{}-*"}
_PLATFORM = {"ubuntu": ("Canonical Ubuntu", "24.04"), "opc": ("Oracle Linux", "8")}


def machine(stack: Stack, draft: Draft, key: str, role: str, *, shape: tuple[str, ...] = ()) -> None:
    """Put shape, OCPUs, memory and boot volume of a role (`controller`, `bastion`, `login`, `instance_pool`).

    Args:
        shape: the variables that name the shape, the first with its value; default: that of the role.
    """
    from_variables = shape or (f"{role}_shape",)
    name = stack.text(from_variables[0])
    known = shapes.catalogue().get(name)
    if known is None and role != "instance_pool":
        draft.put(f"{key}.shape", CONTROLLER_SHAPE, from_variables[0])
        if not name.endswith("Flex"):
            draft.put(f"{key}.ocpus", _OCPUS)
            draft.put(f"{key}.memory_gb", _MEMORY_GB)
        draft.decide(f"{key}.shape", f"gpucluster does not know the shape {name!r} of the stack.", from_variables[0])
    else:
        draft.put(f"{key}.shape", name, *from_variables)
    if not stack.given(from_variables[0]) and role == "instance_pool":
        text = f"the variables name no shape for {from_variables[-1]}. This is the stack's default."
        draft.decide(f"{key}.shape", text, *from_variables)
    if known.flex if known is not None else name.endswith("Flex"):
        _size(stack, draft, key, role)
    boot = "boot_volume_size" if role == "instance_pool" else f"{role}_boot_volume_size"
    size = stack.number(boot)
    if size is not None:
        draft.put(f"{key}.boot_volume_gb", max(size, _SMALLEST_BOOT_GB), boot)


def _size(stack: Stack, draft: Draft, key: str, role: str) -> None:
    ocpus = f"{role}_ocpus"
    number = stack.number(ocpus) or 1
    draft.put(f"{key}.ocpus", number, ocpus)
    if stack.flag(f"{role}_custom_memory"):
        memory = stack.number(f"{role}_memory") or number * _GB_PER_OCPU
        draft.put(f"{key}.memory_gb", memory, f"{role}_memory", f"{role}_custom_memory")
    else:
        draft.put(f"{key}.memory_gb", number * _GB_PER_OCPU, ocpus)


# --- images -----


def image(stack: Stack, draft: Draft, key: str, role: str) -> None:
    """Put the image of the controller (`controller`, in 2.6 to 2.10 `bastion`) or of the login nodes (`login`)."""
    user = f"{role}_username" if role != "login" or stack.given("login_username") else "controller_username"
    of_2 = {"bastion": ("use_standard_image",), "login": ("use_standard_image_login",)}.get(role, ())
    ways = [name for name in (*of_2, f"use_marketplace_image_{role}") if stack.given(name)]
    markets = [name for name in ways or [f"use_marketplace_image_{role}"] if stack.flag(name)]
    listing = f"marketplace_listing_{role}" if not stack.given("bastion_listing") else "bastion_listing"
    own = f"unsupported_{role}_image" if stack.flag(f"unsupported_{role}") else f"custom_{role}_image"
    if markets:
        _listing(stack, draft, key, sources=(listing, *markets), user=user)
    else:
        _custom(stack, draft, key, sources=(own, f"unsupported_{role}", *ways), user=user)


def pool_image(stack: Stack, draft: Draft, key: str) -> None:
    """Put the image of the nodes."""
    user = "compute_username" if stack.given("compute_username") else "bastion_username"
    if not stack.given(user):
        user = "compute_username"
    if stack.flag("use_marketplace_image"):
        _listing(stack, draft, key, sources=("marketplace_listing", "use_marketplace_image"), user=user)
    else:
        own = "image_ocid" if stack.flag("unsupported") else "image"
        _custom(stack, draft, key, sources=(own, "unsupported", "use_marketplace_image"), user=user)


def _listing(stack: Stack, draft: Draft, key: str, *, sources: tuple[str, ...], user: str) -> None:
    name = stack.text(sources[0])
    match = _LISTING.fullmatch(name)
    kind = "GPU" if name.startswith("GPU") else "HPC"
    listing_id = f"marketplace_listing_id_{kind}"
    draft.put(f"{key}.listing", stack.text(listing_id), listing_id, *sources)
    version = stack.mapping("marketplace_version_id").get(name)
    if match is None or int(match["system"]) < 8:  # noqa: PLR2004 - Oracle Linux 7, or an older name
        draft.put(f"{key}.listing_version", "Oracle*Linux-8*", sources[0])
        text = "hosts with Oracle Linux 7 are not supported. This is the newest version with Oracle Linux 8."
        draft.decide(f"{key}.listing_version", text, sources[0])
    elif version:
        draft.put(f"{key}.listing_version", version, "marketplace_version_id", sources[0])
    elif match["vendor"]:
        draft.put(f"{key}.listing_version", _DRIVERS[match["vendor"]].format(match["driver"]), sources[0])
    else:
        draft.put(f"{key}.listing_version", f"Oracle*Linux-{match['system']}*", sources[0])
    draft.put(f"{key}.login_user", stack.text(user) or "opc", user)


def _custom(stack: Stack, draft: Draft, key: str, *, sources: tuple[str, ...], user: str) -> None:
    ocid = stack.text(sources[0])
    if re.fullmatch(IMAGE_PATTERN, ocid) and ocid != variables()[sources[0]].default:
        draft.put(f"{key}.ocid", ocid, *sources)
        if stack.release() != 2:  # noqa: PLR2004 - since 3.0 the stack adds the shape to the image
            draft.put(f"{key}.make_compatible", True)
        draft.put(f"{key}.login_user", stack.text(user), user)
        return
    system, version = _PLATFORM.get(stack.text(user), _PLATFORM["opc"])
    draft.put(f"{key}.operating_system", system, user)
    draft.put(f"{key}.version", version)
    text = "the variables name no image of yours; this is a platform image. GPU nodes need one with the driver."
    draft.decide(key, text, *sources)
