"""What a request asks for a user, and what contradicts itself."""

from __future__ import annotations

import pytest

from gpucluster.controller.users import desired
from gpucluster.node_agent import errors
from tests.controller.users.directory_model import LOCAL


def test_conflicts_within_one_request() -> None:
    for given_, word in (
        ([{"name": "a"}, {"name": "a"}], "mentioned twice"),
        ([{"name": "a", "uid": 10009}, {"name": "b", "uid": 10009}], "requested for a and for b"),
        ({"name": "a"}, "list"),
    ):
        with pytest.raises(errors.Refused, match=word):
            desired.desired_users(given_, LOCAL)
