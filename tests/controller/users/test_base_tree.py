"""The entries that a directory begins with."""

from __future__ import annotations

import pytest

from gpucluster.controller.users import config
from gpucluster.controller.users import plan as plans
from gpucluster.node_agent import errors
from tests.controller.users.directory_model import LOCAL, Directory
from tests.controller.users.harness import CONFIG


def test_base_tree_and_description_must_agree(there: Directory) -> None:
    there.want("alice")
    other = config.Config.parse({**CONFIG, "gid": 9998})
    with pytest.raises(errors.Refused, match="has gid 9999"):
        plans.Plan(other, there.state, LOCAL, {})
