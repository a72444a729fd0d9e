"""Images and sizes of roles, in the releases that name their variables differently."""

from __future__ import annotations

from typing import Any

import pytest

from gpucluster.resource_manager.table import variables
from tests.resource_manager.convert_cases import draft_of
from tests.resource_manager.stacks import IMAGE, stack

HPC = variables()["marketplace_listing_id_HPC"].default


@pytest.mark.parametrize(
    ("release", "changes", "key", "expected"),
    [
        ("2.9.2", {}, "controller.shape", "VM.Standard.E4.Flex"),
        ("2.9.2", {"bastion_ocpus": 6}, "controller.memory_gb", 96),
        ("2.9.2", {}, "login.count", None),
        ("2.9.2", {"use_standard_image": False, "custom_bastion_image": IMAGE}, "controller.image.ocid", IMAGE),
        ("2.9.2", {}, "controller.image.listing", HPC),
        ("2.10.4", {"marketplace_listing_bastion": "HPC_OL8"}, "controller.image.listing_version", "Oracle*Linux-8*"),
        ("2.10.6", {"controller_username": "ubuntu"}, "controller.image.login_user", "ubuntu"),
        ("2.11.3", {"use_marketplace_image_login": False, "custom_login_image": IMAGE}, "login.image.ocid", IMAGE),
        ("2.11.3", {"use_marketplace_image_login": False, "custom_login_image": IMAGE},
         "login.image.make_compatible", None),
        ("3.1.0", {}, "login.image.listing", None),
        ("2.11.3", {"marketplace_version_id": {"HPC_OL8": "Oracle-8-x"}}, "pools.compute.image.listing_version",
         "Oracle-8-x"),
    ],
)  # fmt: skip
def test_each_role_has_its_machine(release: str, changes: dict[str, Any], key: str, expected: Any) -> None:
    values: dict[str, Any] = {**stack(release), **changes}
    assert draft_of(values).value(key) == expected


@pytest.mark.parametrize("listing", ["HPC_OL7", "GPU_OL7_NV535", "1. Oracle Linux 7.8 OFED5.0"])
def test_oracle_linux_7_becomes_8_and_is_left_to_decide(listing: str) -> None:
    draft = draft_of(stack("2.10.6", marketplace_listing=listing))
    assert draft.value("pools.compute.image.listing_version") == "Oracle*Linux-8*"
    assert "pools.compute.image.listing_version" in draft.decisions


def test_a_custom_image_that_is_only_the_placeholder_of_the_stack_is_left_to_decide() -> None:
    for image in ("image.ocid", variables()["image"].default, "not an OCID"):
        draft = draft_of(stack("3.1.0", use_marketplace_image=False, image=image, compute_username="ubuntu"))
        assert draft.value("pools.compute.image.operating_system") == "Canonical Ubuntu"
        assert "pools.compute.image" in draft.decisions


@pytest.mark.parametrize(
    ("shape", "size", "of_variable"), [("VM.Standard2.4", (4, 64), False), ("VM.Standard.A1.Flex", (8, 128), True)]
)
def test_a_shape_that_is_not_known_gets_another_machine(shape: str, size: tuple[int, int], of_variable: bool) -> None:
    """Of the size of a flexible one, or with a size that no variable names."""
    draft = draft_of(stack("3.1.0", controller_shape=shape, controller_ocpus=8))
    assert draft.value("controller.shape") == "VM.Standard.E5.Flex"
    assert (draft.value("controller.ocpus"), draft.value("controller.memory_gb")) == size
    assert bool(draft.sources_of("controller.ocpus")) is of_variable
    assert shape in draft.decisions["controller.shape"].text


@pytest.mark.parametrize(("networked", "variable"), [(True, "cluster_network_shape"), (False, "instance_pool_shape")])
def test_a_shape_that_only_the_stack_chose_is_left_to_decide(networked: bool, variable: str) -> None:
    """Files of others name the shape of the kind of pool that they do not have."""
    values = stack("3.1.0", rdma_enabled=networked)
    assert "pools.compute.shape" not in draft_of(values).decisions
    del values[variable]
    assert variable in draft_of(values).decisions["pools.compute.shape"].sources
