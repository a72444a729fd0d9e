"""Which cluster a folder may change: by the state, this machine, the tags and the operator."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpucluster.cloud.clusters import Sighting
from gpucluster.errors import OtherClusterError
from gpucluster.handover.ownership import FolderFacts, identity, is_first, others, require_name

A, B = "a" * 16, "b" * 16
HOST, NETWORK, FILES = "instance", "vcn", "file_system"


def seen(ocid: str, kind: str = HOST, of: str = "", *, state: str = "RUNNING") -> Sighting:
    return Sighting("demo", kind, ocid, f"demo-{ocid}", state, of, controller=kind == HOST)


def folder(own: str = "", *known: str) -> FolderFacts:
    return FolderFacts("demo", "cluster.yml", "10.77.0.0/16", own, known)


@pytest.mark.parametrize(
    ("here", "found", "result"),
    [
        (folder(), [], ""),
        (folder(A), [], A),
        (folder(A), [seen("h", of=A)], A),
        (folder(A, "h"), [seen("h", of=A), seen("old elastic node")], A),
        # A state without an identity, whose cluster has got one from another machine.
        (folder("", "h"), [seen("h", of=B), seen("n", NETWORK, B)], B),
        # No identity at all, and while an apply gives one.
        (folder("", "h"), [seen("h"), seen("n", NETWORK)], ""),
        (folder(A, "h"), [seen("h"), seen("n", NETWORK, A)], A),
        # A network without an identity.
        (folder(), [seen("n", NETWORK)], ""),
        # What is being deleted belongs to no cluster any more.
        (folder(), [seen("h", of=B, state="TERMINATING")], ""),
    ],
)
def test_a_folder_knows_its_cluster(here: FolderFacts, found: list[Sighting], result: str) -> None:
    assert identity(here, found) == result


@pytest.mark.parametrize(
    ("here", "found"),
    [
        (folder(), [seen("h", of=B)]),
        (folder(), [seen("n", NETWORK, B)]),
        (folder(), [seen("h")]),
        (folder(A), [seen("h", of=B)]),
        (folder(A, "h"), [seen("h", of=A), seen("i", of=B)]),
        (folder(A), [seen("h")]),
        (folder("", "gone"), [seen("h", of=B)]),
    ],
)
def test_another_cluster_is_refused(here: FolderFacts, found: list[Sighting]) -> None:
    with pytest.raises(OtherClusterError, match="not known to be yours"):
        identity(here, found)


def test_files_without_a_host_are_no_leftover_of_an_empty_folder() -> None:
    with pytest.raises(OtherClusterError):
        identity(folder(), [seen("f", FILES)], strict=True)


@pytest.mark.parametrize(
    ("here", "found", "named", "result"),
    [
        (folder(), [seen("h", of=B)], B, B),
        (folder(A), [seen("h", of=B)], B, B),  # saved before the cluster of that time was destroyed elsewhere
        (folder(A, "h"), [seen("h", of=B)], B, B),  # two machines gave one cluster an identity at once
        (folder(A, "h"), [seen("h", of=A)], A, A),
        (folder(), [seen("h"), seen("n", NETWORK)], "h", ""),
        (folder(A, "gone"), [seen("h", of=B)], B, None),
        (folder(), [seen("h", of=B), seen("i", of=A)], B, None),
        (folder(), [seen("h", of=B)], "h", None),
        (folder(), [seen("h")], B, None),
        (folder(), [], B, None),
        (folder(A), [], B, None),
    ],
)
def test_a_name_is_consent_for_that_cluster_alone(
    here: FolderFacts, found: list[Sighting], named: str, result: str | None
) -> None:
    if result is None:
        with pytest.raises(OtherClusterError):
            identity(here, found, named=named)
    else:
        assert identity(here, found, named=named) == result


@given(
    st.sampled_from(["", A, B]),
    st.sets(st.sampled_from("hnf"), max_size=3),
    st.lists(
        st.builds(seen, st.sampled_from("hnfx"), st.sampled_from([HOST, NETWORK, FILES]), st.sampled_from(["", A, B]))
    ),
    st.sampled_from(["", A, B, "h"]),
    st.booleans(),
)  # fmt: skip
def test_what_is_changed_is_proven_or_named(
    own: str, known: set[str], found: list[Sighting], named: str, strict: bool
) -> None:
    try:
        result = identity(folder(own, *known), found, named=named, strict=strict)
    except OtherClusterError:
        return
    ids = {each.identity for each in found if each.identity}
    assert ids <= {result}, "nothing of another identity"
    if any(each.kind == HOST for each in found):
        proven = bool(own and own == result) or any(each.id in known for each in found)
        assert proven or known or named


def test_a_state_keeps_its_name() -> None:
    require_name(folder("", "h"), {"demo"})
    require_name(folder("", "h"), set())
    require_name(folder(), {"other"})  # without resources: a first apply that has created nothing
    with pytest.raises(OtherClusterError, match=r"state is of the cluster other, and cluster\.yml names demo"):
        require_name(folder("", "h"), {"other"})


def made(ocid: str, of: str, created: str, kind: str = NETWORK, state: str = "") -> Sighting:
    return replace(seen(ocid, kind, of, state=state), created=created)


@pytest.mark.parametrize(
    ("found", "first"),
    [
        ([made("a", A, "2")], A),
        ([made("a", A, "2"), made("b", B, "1")], B),
        ([made("b", B, "2"), made("a", A, "1")], A),
        # Both at the same moment: the two runs compute the same.
        ([made("b", B, "1"), made("a", A, "1")], A),
        # What is being deleted, files that a destroy has kept, and nodes begin no cluster; a controller does.
        ([made("a", A, "2"), made("b", B, "1", state="TERMINATING")], A),
        ([made("a", A, "2"), made("b", B, "1", FILES)], A),
        ([made("a", A, "2"), made("b", B, "1", HOST)], B),
        ([made("a", A, "2"), made("without an identity", "", "1")], A),
    ],
)
def test_of_two_that_begin_at_once_all_see_the_same_first_one(found: list[Sighting], first: str) -> None:
    assert {own for own in (A, B) if is_first(found, own)} == {first}


def test_what_stands_of_others_is_what_names_another_identity() -> None:
    theirs = [seen("h", of=B), seen("n", NETWORK, B), seen("f", FILES, B)]
    ours = [seen("own", of=A), seen("older"), seen("gone", of=B, state="TERMINATING")]
    assert others([*theirs, *ours], A) == theirs
    assert others(ours, A) == []
