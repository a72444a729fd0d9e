"""When maintenance is read: by default, and what its settings need."""

from __future__ import annotations

import pytest

from gpucluster.errors import InputError
from gpucluster.spec import loads
from tests.spec.spec_texts import LOCAL

STILL = LOCAL.replace("    max_count: 4\n", "    count: 1\n")


@pytest.mark.parametrize(
    ("text", "enabled"),
    [
        (LOCAL, True),
        (STILL, False),
        (STILL + "maintenance: {enabled: true}\n", True),
        (LOCAL + "maintenance: {enabled: false}\n", False),
        (LOCAL + "checks: {enabled: false}\n", False),
    ],
)
def test_it_is_read_where_the_controller_may_ask_the_cloud_or_where_it_is_asked_for(text: str, enabled: bool) -> None:
    assert loads(text).maintenance.enabled is enabled


@pytest.mark.parametrize(
    ("text", "path"),
    [
        (STILL + "maintenance: {enabled: true}\nchecks: {enabled: false}\n", "maintenance.enabled"),
        (STILL + "maintenance: {early: true}\n", "maintenance.early"),
    ],
)
def test_a_setting_that_could_have_no_effect_is_refused(text: str, path: str) -> None:
    with pytest.raises(InputError) as caught:
        loads(text)
    (found,) = caught.value.findings
    assert found.path == path
    assert found.hint
