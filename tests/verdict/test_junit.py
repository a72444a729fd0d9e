"""The XML is what readers of JUnit files take, whatever the results are."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from xml.etree import ElementTree as ET

import pytest

from gpucluster.verdict import junit
from gpucluster.verdict.expectation import Level
from gpucluster.verdict.verdict import CheckResult, Verdict
from tests.verdict.samples import FULL, facts, verdict

# Children of each element in their order, and its attributes: those that must be there, and those that may. It is what
# two schemas have in common: JUnit.xsd (windyroad, of Ant's task) and junit-10.xsd (of Jenkins' xUnit plugin).
COUNTS = {"tests", "failures", "errors", "skipped"}
ELEMENTS: Mapping[str, tuple[tuple[str, ...], set[str], set[str]]] = {
    "testsuites": (("testsuite",), set(), {"name", "time", *COUNTS}),
    "testsuite": (
        ("properties", "testcase", "system-out", "system-err"),
        {"id", "package", "name", "timestamp", "hostname", "time", *COUNTS},
        set(),
    ),
    "properties": (("property",), set(), set()),
    "property": ((), {"name", "value"}, set()),
    "testcase": (("error", "failure", "skipped"), {"name", "classname", "time"}, set()),
    "failure": ((), {"type"}, {"message"}),
    "error": ((), {"type"}, {"message"}),
    "skipped": ((), set(), {"message"}),
    "system-out": ((), set(), set()),
    "system-err": ((), set(), set()),
}


def _check(element: ET.Element) -> None:
    children, needed, allowed = ELEMENTS[element.tag]
    assert needed <= set(element.attrib) <= needed | allowed, (element.tag, element.attrib)
    places = [children.index(child.tag) for child in element]
    assert places == sorted(places), element.tag
    if element.tag == "testcase":
        assert len(element) <= 1
    if element.tag == "testsuite":
        assert [element.find(name) is not None for name in children] == [True] * 4
        cases = element.findall("testcase")
        assert int(element.attrib["tests"]) == len(cases)
        for attribute, tag in (("failures", "failure"), ("errors", "error"), ("skipped", "skipped")):
            assert int(element.attrib[attribute]) == sum(case.find(tag) is not None for case in cases)
    for child in element:
        _check(child)


def _document(found: Verdict) -> ET.Element:
    text = junit.document(found, "demo", time="2026-11-22T23:05:32", seconds=4.2)
    assert text.startswith('<?xml version="1.0" encoding="UTF-8"?>\n')
    root = ET.fromstring(text.encode())
    _check(root)
    return root


def test_each_kind_of_subject_is_a_suite_and_each_result_a_case() -> None:
    reported = facts(FULL)
    reported["compute-1"]["firewall"] = {"state": "failed", "words": "no nft"}
    reported["compute-2"].pop("cloud_services")
    found = verdict(dataclasses.replace(FULL, people={}), reported)
    root = _document(found)
    assert [suite.attrib["name"] for suite in root] == ["host", "node", "pool", "cluster"]
    assert {name: int(root.attrib[name]) for name in ELEMENTS["testsuites"][2] & {"failures", "errors", "tests"}} == {
        "tests": len(found.results), "failures": 1, "errors": 1
    }  # fmt: skip
    assert int(root.attrib["skipped"]) == sum(result.status == "skip" for result in found.results) > 0
    (failure,) = root.iter("failure")
    assert (failure.attrib, "journalctl" in (failure.text or "")) == ({"message": "no nft", "type": "firewall"}, True)
    (case,) = (case for case in root.iter("testcase") if case.find("failure") is not None)
    assert case.attrib["classname"] == "demo.host.compute-1"
    assert [error.attrib["message"] for error in root.iter("error")] == ["not tried"]


def _result(status: str, message: str) -> CheckResult:
    return CheckResult("a name", status, message, "a_name", "host", "n<1>", "do & that", "report")


@pytest.mark.parametrize("text", ["<b>&amp;]]>", "bell \a null \0 escape \x1b[31m", "\ud800 \ufffe", "Ünï \U0001f4a5"])
@pytest.mark.parametrize("status", ["pass", "warn", "fail", "unknown", "skip"])
def test_strange_texts_make_no_broken_document(text: str, status: str) -> None:
    root = _document(Verdict(Level.QUICK, (_result(status, text),), {}))
    assert int(root.attrib["tests"]) == 1


def test_a_warning_is_not_a_failure_and_is_told() -> None:
    root = _document(Verdict(Level.QUICK, (_result("warn", "hot"),), {}))
    assert root.attrib["failures"] == "0"
    assert root.findtext("testsuite/system-out") == "warning: n<1>: a name: hot"


@pytest.mark.parametrize("reason", ["no answer. Look at it", "<b>&amp;]]> \x1b[31m", ""])
def test_a_run_without_a_verdict_is_a_document_with_one_error(reason: str) -> None:
    text = junit.failed_document(reason, "demo", time="2026-11-22T23:05:32", seconds=4.2)
    root = ET.fromstring(text.encode())
    _check(root)
    (error,) = root.iter("error")
    assert (error.text or "").replace("?", "\x1b") == reason
