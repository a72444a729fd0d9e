"""Facts with one owner: each test fails when a second copy of a fact appears in another module."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from gpucluster.localcloud.state.region import REGION
from gpucluster.spec import PROVIDERS

PACKAGE = Path(__file__).parents[2] / "gpucluster"
#: Programs of the local cloud's image; they can't import gpucluster.
ELSEWHERE = ("localcloud/image/image_files/", "localcloud/image/trap_files/")

#: Each fact: the pattern of a copy, and the files that own it.
FACTS: dict[str, tuple[str, tuple[str, ...]]] = {
    "which cloud it is": (
        r"""\bprovider\b[^\n=]{0,12}[=!]= *["'](?:local|oci)|["'](?:local|oci)["'] *[=!]= *[^\n]*\bprovider\b""",
        ("cloud/providers",),
    ),
    "who makes the GPUs of a shape": (
        r"""gres_type[^\n]*startswith|["']mi3\d\dx["']|gpu_vendor *[=!]=""",
        ("shapes.py", "node_agent/nccl/shape_limits.py"),  # the second is generated from shapes.toml
    ),
    "which cloud emulates hardware": (r"^    +hardware_emulated *= *(?:True|False),?$", ("spec/sections/cloud.py",)),
    "the image of the local cloud": (r"""["']Debian["'], *["']version["']""", ("spec/sections/cloud.py",)),
    "addresses that OCI takes of a subnet": (
        r"(?:RESERVED|MOUNT_TARGET|BASTION)_ADDRESSES *=",
        ("spec/rules/network.py",),
    ),
    "the user that an image lets in": (r"""["']Canonical Ubuntu["'] *: *["']ubuntu["']""", ("spec/defaults.py",)),
    "tags by which resources are found": (
        r"""freeform_tags[^\n]*(?:get\(|\[)["'](?:gpucluster|node|pool|role|builder|generation)["']"""
        r"""|^(?:CLUSTER|CLUSTER_TAG|NODE|POOL|ROLE|BUILDER|GENERATION) *= *["']""",
        ("oci/tags.py",),
    ),
    "names of elastic nodes and builders": (r"""\}-(?:e|bake)["'{]""", ("oci/names.py",)),
    "what a refusal of OCI means": (
        r"""(?i)out of \(host|hostcapacity|["'|]LimitExceeded|["'|]NotAuthorized""",
        ("oci/refusals.py", "localcloud/"),  # the local cloud is the one that refuses
    ),
    "lifecycle states of OCI": (r"""^    TERMINATING *= *["']TERMINATING["']""", ("oci/states.py",)),
    "types of ssh keys": (r"""["']ssh-ed25519["'] *:""", ("controller/rules/ssh_keys.py",)),
    "names that belong to the system": (r"\b_apt\b", ("controller/rules/names.py",)),
    "suggestions for a misspelled word": (r"get_close_matches\(", ("text.py",)),
}


def _copies(pattern: str, owners: tuple[str, ...]) -> list[str]:
    found = []
    for file in sorted(PACKAGE.rglob("*.py")):
        name = file.relative_to(PACKAGE).as_posix()
        if not name.startswith((*owners, *ELSEWHERE)):
            text = file.read_text()
            found += [
                f"{name}:{text.count(chr(10), 0, one.start()) + 1}" for one in re.finditer(pattern, text, re.MULTILINE)
            ]
    return found


@pytest.mark.parametrize("fact", FACTS)
def test_a_fact_has_one_owner(fact: str) -> None:
    pattern, owners = FACTS[fact]
    assert _copies(pattern, owners) == []


@pytest.mark.parametrize("fact", FACTS)
def test_the_owner_has_the_fact(fact: str) -> None:
    """A pattern that finds nothing in the owner would find no copy either."""
    pattern, owners = FACTS[fact]
    files = [file for owner in owners for file in [PACKAGE / owner, *(PACKAGE / owner).rglob("*.py")]]
    files += [(PACKAGE / owner).with_suffix(".py") for owner in owners]
    assert any(re.search(pattern, file.read_text(), re.MULTILINE) for file in files if file.is_file())


def test_the_local_cloud_is_in_the_region_that_a_spec_has() -> None:
    assert PROVIDERS["local"].only_region == REGION
