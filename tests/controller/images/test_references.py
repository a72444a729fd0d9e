"""The names of images: those that Enroot gives to files, and addresses that reach out of the directory."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpucluster.controller.images import references
from gpucluster.node_agent import errors

DIGEST = "0123456789abcdef" * 4


@pytest.mark.parametrize(
    ("uri", "name"),
    [
        ("docker://registry.example#org/tool:1.0", "org+tool+1.0"),
        ("registry.example#org/a/b_c:v1", "org+a+b_c+v1"),
        ("docker://$oauthtoken@registry.example:5000#tool", "tool"),
        ("docker://tool:22.11-tf2-py3", "tool+22.11-tf2-py3"),
        (f"docker://registry.example#org/tool@sha256:{DIGEST}", f"org+tool+{DIGEST[:12]}"),
        (f"registry.example:5000#org/tool:1.0@sha256:{DIGEST}", f"org+tool+1.0+{DIGEST[:12]}"),
        (f"docker://$oauthtoken@registry.example#tool:1@sha256:{DIGEST}", f"tool+1+{DIGEST[:12]}"),
        (f"docker://tool@sha256:{DIGEST}", f"tool+{DIGEST[:12]}"),
        (f"docker://alice@tool@sha256:{DIGEST}", f"tool+{DIGEST[:12]}"),
        ("registry.example:5000/org/tool:1.0", "org+tool+1.0"),
        ("registry:5000/tool:1.0", "tool+1.0"),
        ("docker://alice@registry.example/org/tool", "org+tool"),
        (f"registry.example/tool:1.0@sha256:{DIGEST}", f"tool+1.0+{DIGEST[:12]}"),
        ("docker://org/tool:1.0", "org+tool+1.0"),
    ],
)
def test_names_are_those_that_enroot_gives(uri: str, name: str) -> None:
    """Of an image by its digest, its first digits alone."""
    assert references.reference(uri).name == name
    assert references.reference(uri).uri.endswith(uri)
    assert references.reference(uri, "other.sqsh").name == "other"


@given(st.text(max_size=60) | st.from_regex(r"(docker://)?[a-z$@#:/. \n;|-]{0,40}", fullmatch=True))
def test_no_address_reaches_out_of_the_directory(uri: str) -> None:
    try:
        found = references.reference(uri)
    except errors.Refused:
        return
    assert re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._+-]*", found.name)
    assert re.fullmatch(r"docker://[A-Za-z0-9$@#:/._-]+", found.uri)
