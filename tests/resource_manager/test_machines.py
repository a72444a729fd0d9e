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


def test_a_shape_that_is_not_known_gets_another_machine_and_no_size_of_its_own() -> None:
    draft = draft_of(stack("3.1.0", controller_shape="VM.DenseIO.E5.Flex"))
    assert (draft.value("controller.ocpus"), draft.value("controller.memory_gb")) == (4, 64)
    assert "VM.DenseIO.E5.Flex" in draft.decisions["controller.shape"].text
