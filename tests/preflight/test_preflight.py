"""Every rule of preflight with good and bad facts, and that no facts at all can make it raise."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import fields, is_dataclass, replace
from pathlib import Path
from typing import Any, get_args, get_origin, get_type_hints

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpucluster.cli.output import JsonLines, findings
from gpucluster.errors import PreflightError, PreflightFinding
from gpucluster.preflight import PreflightReport
from gpucluster.preflight.evaluate import CHECKS, evaluate
from gpucluster.preflight.facts import (
    Capacity,
    Compartment,
    Created,
    Facts,
    FirstCall,
    Limit,
    Vcn,
)
from gpucluster.spec import ClusterSpec
from tests.examples import examples
from tests.preflight.cases import (
    CONTROLLER,
    GPU,
    KEY,
    UBUNTU,
    Changes,
    image_fact,
    limits_fact,
)
from tests.preflight.checks import test_access, test_images, test_machines, test_network
from tests.preflight.preflight_facts import (
    AD1,
    AD2,
    CONTROLLER_SHAPE,
    EXISTING,
    GPU_SHAPE,
    GPUS,
    LISTED,
    PERMANENT,
    PRIVATE,
    RESERVED,
    SHARED,
    VCN,
    desired,
    good,
    refused,
)


@pytest.mark.parametrize("changes", [(), EXISTING, SHARED, RESERVED, LISTED, PERMANENT])
def test_nothing_is_reported_of_a_spec_that_can_be_created(changes: Changes, tmp_path: Path) -> None:
    assert evaluate(desired(tmp_path, *changes), good(*changes)) == ()


@pytest.mark.parametrize(
    "facts",
    [
        {"first_call": FirstCall("x", 200, skew=59.0)},
        {"first_call": FirstCall("x", 404, skew=None)},
        {"limits": {GPUS: Limit(None)}},
        {"capacity": {(AD1, GPU_SHAPE): Capacity("AVAILABLE")}},
        {
            "instances": (CONTROLLER, GPU, replace(GPU, name="h100-2")),
            **limits_fact(gpus=Limit(48, 16), cores=Limit(0, 4)),
        },
        {"vcns": (Vcn("v", "ours", ("10.0.0.0/16",), ours=True),), "limits": {("vcn", "vcn-count", ""): Limit(0, 1)}},
        {"created": Created(1, 1), "limits": {("filesystem", "mount-target-count", AD1): Limit(0, 1)}},
        {"instances": (GPU, replace(GPU, name="h100-2")), "capacity": {(AD1, GPU_SHAPE): Capacity("OUT", 0)}},
    ],
)
def test_what_causes_no_finding(facts: dict[str, Any], tmp_path: Path) -> None:
    assert evaluate(desired(tmp_path), good(**facts)) == ()


def test_errors_come_first_and_nothing_is_reported_twice(tmp_path: Path) -> None:
    facts = good(
        first_call=FirstCall("x", 200, skew=70), compartment=Compartment("c", "DELETED"), **image_fact(terms=("t",))
    )
    found = evaluate(desired(tmp_path), facts)
    assert [one.level for one in found] == ["error", "warning", "note"]
    assert len(set(found)) == len(found)


def test_what_could_not_be_read_for_one_reason_is_one_warning(tmp_path: Path) -> None:
    some = {key: refused("limits", f"the limit {key[1]}") for key in good().limits}
    (found,) = evaluate(desired(tmp_path), good(limits=some))
    assert found.level == "warning"
    assert "and 2 more" in found.reason
    assert "Allow group" in found.action


def test_a_cloud_that_answers_nothing_is_one_error(tmp_path: Path) -> None:
    down = refused("x", "all", 503)
    facts = good(
        regions=down, compartment=down, domains=down, vcns=down, instances=down, shapes={}, images={"h100": down}
    )
    (found,) = evaluate(desired(tmp_path), facts)
    assert (found.level, found.check) == ("error", "credentials")


def test_a_far_off_clock_is_the_only_thing_told(tmp_path: Path) -> None:
    """It explains why the signature is not believed; nothing else could be asked."""
    facts = Facts(key_file=good().key_file, first_call=FirstCall("region us-ashburn-1", 401, "no", skew=-900.0))
    assert [one.check for one in evaluate(desired(tmp_path), facts)] == ["clock"]


def test_every_check_is_in_the_table_and_has_a_case() -> None:
    assert len(set(CHECKS)) == len(CHECKS)
    files = (test_access, test_machines, test_images, test_network)
    told = {case[3] for file in files for case in file.CASES.values()}
    assert told == {
        "credentials", "clock", "region", "compartment", "ssh", "terraform", "domains", "shapes", "limits", "capacity",
        "reservation", "image", "network", "names", "addresses", "overlap", "storage", "gpus",
    }  # fmt: skip


# --- anything at all -----

WORDS = st.sampled_from(
    ["", AD1, AD2, "10.0.0.0/16", "10.0.1.0/24", "fd00::/8", "nonsense", VCN, PRIVATE, "ACTIVE", "AVAILABLE", GPU_SHAPE,
     CONTROLLER_SHAPE, "controller", "h100", "all", "6"]
)  # fmt: skip
# Keys that some rule looks for; any others would only be passed over.
KEYS: dict[str, st.SearchStrategy[Any]] = {
    "limits": st.sampled_from(sorted(good().limits)),
    "capacity": st.sampled_from(sorted(good().capacity)),
    "images": st.sampled_from(["controller", "h100", "gone"]),
    "reservations": st.sampled_from(["h100", "gone"]),
    "subnets": st.sampled_from(["public", "private"]),
}
PLAIN: dict[Any, st.SearchStrategy[Any]] = {
    str: WORDS, int: st.integers(-5, 500), float: st.floats(-1e4, 1e4), bool: st.booleans(), type(None): st.none(),
    Path: st.just(KEY),
}  # fmt: skip


def _any(hint: Any, name: str = "") -> st.SearchStrategy[Any]:
    """Values of a type that the facts are made of."""
    if hint in PLAIN:
        return PLAIN[hint]
    if isinstance(hint, type) and is_dataclass(hint):
        hints = get_type_hints(hint)
        return st.builds(hint, **{one.name: _any(hints[one.name], one.name) for one in fields(hint)})
    words = get_args(hint)
    if get_origin(hint) is tuple:
        return st.lists(_any(words[0]), max_size=2).map(tuple) if ... in words else st.tuples(*map(_any, words))
    if get_origin(hint) is frozenset:
        return st.frozensets(_any(words[0]), max_size=3)
    if get_origin(hint) is Mapping:
        return st.dictionaries(KEYS.get(name, _any(words[0])), _any(words[1]), max_size=3)
    return st.one_of(*map(_any, words))


@pytest.fixture(scope="module")
def specs(tmp_path_factory: pytest.TempPathFactory) -> list[ClusterSpec]:
    folder = tmp_path_factory.mktemp("specs")
    return [desired(folder, *changes) for changes in ((), EXISTING, SHARED, RESERVED, LISTED)]


@examples(60, derandomize=True)
@given(facts=_any(Facts))
def test_no_facts_make_it_raise(facts: Facts, specs: list[ClusterSpec]) -> None:
    for spec in specs:
        for finding in evaluate(spec, facts):
            assert finding.level in ("error", "warning", "note")
            assert finding.reason


# --- words -----


def test_the_error_lists_every_finding_and_is_bad_input() -> None:
    found = (
        PreflightFinding("error", "limits", "too small", "Ask for more"),
        PreflightFinding("warning", "clock", "off", "Set it"),
    )
    error = PreflightError("the cloud would not do this", findings=found)
    assert error.exit_code == 2
    assert str(error).splitlines()[1:] == ["  error: limits: too small. Ask for more", "  warning: clock: off. Set it"]


def test_the_report_as_text_and_as_data(capsys: pytest.CaptureFixture[str]) -> None:
    report = PreflightReport((PreflightFinding("error", "limits", "too small", "Ask for more"),
                     PreflightFinding("note", "image", "a stand-in")))  # fmt: skip
    text = findings(report.findings).splitlines()
    assert text[1:] == ["error  limits  too small", "                 Ask for more", "note   image   a stand-in"]
    assert report.summary == "1 error, 1 note"
    JsonLines().result(report.to_dict(), "")
    data = json.loads(capsys.readouterr().out)["data"]
    assert data["status"] == "failed"
    assert data["findings"][0] == {"level": "error", "check": "limits", "reason": "too small", "action": "Ask for more"}
    JsonLines().error(PreflightError("no", findings=report.findings))
    assert json.loads(capsys.readouterr().out)["data"]["findings"][1]["check"] == "image"


def test_a_login_node_may_boot_what_a_node_may(tmp_path: Path) -> None:
    jammy = 'image: {operating_system: Canonical Ubuntu, version: "22.04"}'
    spec = desired(tmp_path, ("pools:", f"login: {{count: 1, {jammy}}}\npools:"))
    found = replace(UBUNTU, name="Canonical-Ubuntu-22.04-2026.06.29-0", version="22.04", custom=False)
    images = {**good().images, "login": found}
    said = [each for each in evaluate(spec, replace(good(), images=images)) if each.check == "image"]
    assert not [each for each in said if each.level == "error"], said
    old = replace(found, name="Canonical-Ubuntu-20.04-2026.06.29-0", version="20.04")
    refused = evaluate(spec, replace(good(), images={**images, "login": old}))
    assert any("Canonical Ubuntu 20.04 is not supported on login nodes" in each.reason for each in refused)
