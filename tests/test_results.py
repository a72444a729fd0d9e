"""What public methods return, and what they raise, can be pickled and written as JSON: all of it, by annotations.

Values are made from the annotations (tests/made_values.py). That values of real runs can be written, too, is in
tests/cluster/test_cancelled_runs.py.
"""

from __future__ import annotations

import json
import pickle
import typing
from dataclasses import replace
from typing import Any

import pytest

import gpucluster
from gpucluster.plain import as_json
from gpucluster.spec import template
from tests.made_values import made
from tests.test_public_surface import _parts, _public_functions


def _is_ours(kind: object) -> bool:
    return isinstance(kind, type) and kind.__module__.startswith("gpucluster")


def _returned() -> dict[str, type]:
    """The types that public functions, methods and properties return, by name."""
    found = {}
    for exported in gpucluster.__all__:
        value = getattr(gpucluster, exported)
        for _, function in _public_functions(value) if callable(value) else ():
            for part in _parts(typing.get_type_hints(function).get("return")):
                if _is_ours(part):
                    found[part.__name__] = part
    return found


def _raised() -> dict[str, type]:
    public = {name: getattr(gpucluster, name) for name in gpucluster.__all__}
    return {name: value for name, value in public.items() if isinstance(value, type) and issubclass(value, Exception)}


RETURNED, RAISED = _returned(), _raised()


@pytest.fixture(scope="module")
def known(tmp_path_factory: pytest.TempPathFactory) -> dict[type, Any]:
    """What annotations alone don't make: a whole cluster.yml with its parts, and a check with a status."""
    file = tmp_path_factory.mktemp("spec") / "cluster.yml"
    file.write_text(template("demo", "local"))
    spec = gpucluster.load(file)
    machine = spec.machines[0]
    return {
        gpucluster.ClusterSpec: spec,
        gpucluster.Machine: machine,
        gpucluster.PoolSpec: next(iter(spec.pools.values())),
        gpucluster.CheckResult: replace(made(gpucluster.CheckResult, {}), status="fail"),
        gpucluster.Shape: next(iter(spec.pools.values())).hardware,
    }


def _same(one: Any, other: Any) -> bool:
    """By fields: errors have no equality of their own."""
    if isinstance(one, Exception):
        return type(one) is type(other) and one.args == other.args and vars(one) == vars(other)
    return bool(one == other)


@pytest.mark.parametrize("name", sorted(RETURNED))
def test_a_result_can_be_pickled_and_written_as_json(known: dict[type, Any], name: str) -> None:
    result = made(RETURNED[name], known)
    assert _same(pickle.loads(pickle.dumps(result)), result)
    text = json.dumps(as_json(result), allow_nan=False)
    assert as_json(json.loads(text)) == as_json(result)


@pytest.mark.parametrize("name", sorted(RAISED))
def test_an_error_can_be_pickled_and_written_as_json(known: dict[type, Any], name: str) -> None:
    verdict = made(gpucluster.Verdict, known)
    done = made(gpucluster.UserChange, known)
    error = made(RAISED[name], {**known, Any: verdict if issubclass(RAISED[name], gpucluster.VerifyError) else done})
    error.__dict__["added later"] = ("is kept",)
    again = pickle.loads(pickle.dumps(error))
    assert _same(again, error)
    assert str(again) == str(error)
    written = json.loads(json.dumps(as_json(error), allow_nan=False))
    assert (written["error"], written["exit_code"]) == (name, error.exit_code)


def test_results_are_found() -> None:
    assert {"RunResult", "ClusterPlan", "ClusterStatus", "DriftReport", "UserChange"} <= {*RETURNED}
    assert {"Interrupted", "VerifyError", "InputError"} <= {*RAISED}
