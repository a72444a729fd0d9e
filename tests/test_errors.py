"""Errors: one exit code for each meaning, the list of them in the module, and how their texts are put together."""

from __future__ import annotations

import re

import pytest

from gpucluster import errors
from gpucluster.errors import (
    CloudError,
    GpuClusterError,
    InputError,
    InputFinding,
    OtherClusterError,
    PartlyDone,
    PreflightError,
    PreflightFinding,
    with_hint,
)

CLASSES = {
    name: kind for name, kind in vars(errors).items() if isinstance(kind, type) and issubclass(kind, GpuClusterError)
}
#: What the list at the top of the module states: exit codes by class, as that stands under the code of its line.
LISTED = re.findall(
    r"^ {4}(\d+ +|)[ |`-]*(\w+Error|PartlyDone|EnvironmentFault|Interrupted)\b", errors.__doc__ or "", re.M
)


def test_every_error_is_in_the_list_with_its_exit_code() -> None:
    codes: dict[str, int] = {}
    present = 0
    for code, name in LISTED:
        present = int(code) if code.strip() else present
        codes[name] = present
    assert codes == {name: kind.exit_code for name, kind in CLASSES.items()}


def test_exit_codes_are_those_that_the_module_names() -> None:
    named = {value for name, value in vars(errors).items() if name.startswith("EXIT_")}
    assert {kind.exit_code for kind in CLASSES.values()} <= named
    assert errors.EXIT_CHANGES not in {kind.exit_code for kind in CLASSES.values()}, "changes are no error"
    # A shell reports a program that a signal ended as 128 and the signal's number.
    assert all(code < 126 or code == errors.EXIT_INTERRUPTED for code in named)


@pytest.mark.parametrize(
    ("text", "hint", "whole"),
    [
        ("it failed", "", "it failed"),
        ("it failed", "Try again", "it failed. Try again"),
        ("did it?", "Look", "did it? Look"),
        ("it failed.", "Try again", "it failed. Try again"),
    ],
)
def test_a_hint_is_a_sentence_of_its_own(text: str, hint: str, whole: str) -> None:
    assert with_hint(text, hint) == whole


def test_an_error_states_what_where_and_what_next() -> None:
    error = GpuClusterError("no answer. ", where="10.0.0.2", hint="Try again")
    assert (error.what, str(error)) == ("no answer", "no answer (10.0.0.2). Try again")
    assert str(GpuClusterError("no answer")) == "no answer"


def test_each_finding_has_a_line_with_its_place() -> None:
    findings = [
        InputFinding("c.yml", 3, 5, "pools.gpu", "is unknown", "Did you mean cpu?"),
        InputFinding("c.yml", 0, 0, "", "is empty"),
    ]
    assert str(InputError("c.yml is wrong", findings=findings)).splitlines() == [
        "c.yml is wrong",
        "  c.yml:3:5: pools.gpu: is unknown. Did you mean cpu?",
        "  c.yml: is empty",
    ]
    finding = PreflightFinding("warning", "limits", "8 of 8 are used", "Ask for more")
    assert str(PreflightError("refused", findings=[finding])).splitlines() == [
        "refused",
        "  warning: limits: 8 of 8 are used. Ask for more",
    ]


def test_what_is_known_of_another_cluster_stands_before_what_to_do() -> None:
    assert str(OtherClusterError("it is another one\n  made by ann", hint="Pass it")) == (
        "it is another one\n  made by ann\nPass it"
    )
    assert str(OtherClusterError("it is another one", hint="Pass it")) == "it is another one. Pass it"


def test_what_was_done_is_under_the_error_once_it_has_a_text() -> None:
    error = PartlyDone("2 users failed", done=object())
    assert str(error) == "2 users failed"
    error.done_text = "ann added\nbob added"
    assert str(error).splitlines() == ["2 users failed", "  ann added", "  bob added"]


def test_an_error_without_an_answer_of_the_cloud_has_no_status() -> None:
    assert (CloudError("x").status, CloudError("x", status=404).exit_code) == (0, errors.EXIT_FAILED)
