"""A verdict as JUnit XML, which pipelines show: one test suite for each kind of subject, one test case for each result.

Valid against both schemas in use, that of Ant's JUnit task and that of Jenkins' xUnit plugin: each suite has
`properties`, `system-out` and `system-err`, and a test case at most one of `error`, `failure` and `skipped`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from xml.etree import ElementTree as ET

from gpucluster.node_agent.checks.model import Scope, Status
from gpucluster.verdict.verdict import CheckResult, Verdict

# XML 1.0 has no way to write these.
_NOT_IN_XML = re.compile("[^\t\n\r\u0020-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
_ELEMENTS = {Status.FAIL.value: "failure", Status.UNKNOWN.value: "error", Status.SKIP.value: "skipped"}


def document(verdict: Verdict, cluster: str, *, time: str, seconds: float) -> str:
    """The XML document.

    Args:
        time: when it began, in UTC: `2026-11-22T23:05:32`.
        seconds: how long it took.
    """
    root = _suites(cluster, _counts(verdict.results), seconds)
    by_scope = {scope: [each for each in verdict.results if each.scope == scope] for scope in Scope}
    for scope, results in ((scope, results) for scope, results in by_scope.items() if results):
        suite = _suite(root, scope, _counts(results), time, {"cluster": cluster, "level": verdict.level.value})
        for result in results:
            _add_case(suite, result, cluster)
        warnings = [f"{each.subject or cluster}: {each.name}: {each.message}" for each in _with(Status.WARN, results)]
        _end(suite, "\n".join(f"warning: {line}" for line in warnings))
    return _written(root)


def failed_document(reason: str, cluster: str, *, time: str, seconds: float) -> str:
    """The XML document of a run that ended before there was a verdict: one test case with an error.

    Args:
        reason: what went wrong, and what to do about it.
        time, seconds: see `document`.
    """
    counted = {"tests": "1", "failures": "0", "errors": "1", "skipped": "0"}
    root = _suites(cluster, counted, seconds)
    suite = _suite(root, Scope.CLUSTER, counted, time, {"cluster": cluster})
    case = _case(suite, "the cluster can be checked", f"{cluster}.{Scope.CLUSTER.value}")
    ET.SubElement(case, "error", {"message": _text(reason), "type": "verify"}).text = _text(reason)
    _end(suite, "")
    return _written(root)


def _suites(cluster: str, counted: Mapping[str, str], seconds: float) -> ET.Element:
    return ET.Element("testsuites", {"name": f"gpucluster verify {cluster}", **counted, "time": f"{seconds:.3f}"})


def _suite(
    root: ET.Element, scope: Scope, counted: Mapping[str, str], time: str, properties: Mapping[str, str]
) -> ET.Element:
    attributes = {"id": str(len(root)), "package": "gpucluster", "name": scope.value, "timestamp": time}
    suite = ET.SubElement(root, "testsuite", {**attributes, "hostname": properties["cluster"], **counted, "time": "0"})
    listed = ET.SubElement(suite, "properties")
    for name, value in properties.items():
        ET.SubElement(listed, "property", {"name": name, "value": value})
    return suite


def _end(suite: ET.Element, output: str) -> None:
    ET.SubElement(suite, "system-out").text = _text(output)
    ET.SubElement(suite, "system-err")


def _written(root: ET.Element) -> str:
    ET.indent(root)
    return f'<?xml version="1.0" encoding="UTF-8"?>\n{ET.tostring(root, encoding="unicode")}\n'


def _add_case(suite: ET.Element, result: CheckResult, cluster: str) -> None:
    where = ".".join(part for part in (cluster, result.scope, result.subject) if part)
    case = _case(suite, result.name, where)
    if kind := _ELEMENTS.get(result.status):
        kinds = {} if kind == "skipped" else {"type": result.check}
        element = ET.SubElement(case, kind, {"message": _text(result.message), **kinds})
        if kind != "skipped":
            element.text = _text(f"{result.message}\n{result.remedy}")


def _case(suite: ET.Element, name: str, where: str) -> ET.Element:
    return ET.SubElement(suite, "testcase", {"name": _text(name), "classname": _text(where), "time": "0"})


def _counts(results: Sequence[CheckResult]) -> dict[str, str]:
    counted = {"failures": Status.FAIL, "errors": Status.UNKNOWN, "skipped": Status.SKIP}
    return {"tests": str(len(results)), **{name: str(len(_with(status, results))) for name, status in counted.items()}}


def _with(status: Status, results: Sequence[CheckResult]) -> list[CheckResult]:
    return [result for result in results if result.status == status]


def _text(text: str) -> str:
    return _NOT_IN_XML.sub("?", text)
