"""The spool and the hostlists in it. The hostlists are compared with the real Slurm's in test_real_slurm."""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpucluster.autoscaler.daemon import spool as module
from gpucluster.autoscaler.daemon.spool import Spool, SpoolError, parse
from gpucluster.autoscaler.decide.types import Intent
from gpucluster.slurm.hostlists import MOST, HostlistError, expand
from tests.examples import examples
from tests.processor import growth

RECORD = {"version": 1, "kind": "resume", "at": 5.5, "nodes": "gpu-e[1-2]", "resume": None}
NEW_RESUME = {
    "jobs": [
        {"job_id": 7, "nodes_resume": "gpu-e1", "nodes_alloc": "gpu-e[1-2]", "partition": "gpu", "extra": None},
        {"job_id": 8, "nodes_resume": "gpu-e[1,3]", "nodes_alloc": "gpu-e[1,3]"},
    ],
    "all_nodes_resume": "gpu-e[1,3]",
}
OLD_RESUME = {"jobs": [{"job_id": 7, "nodes": "gpu-e[1-2]"}], "all_nodes": "gpu-e[1-2]"}


def put(directory: Path, name: str, content: Any) -> None:
    (directory / name).write_text(content if isinstance(content, str) else json.dumps(content))


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("", []),
        ("login", ["login"]),
        ("gpu-e1,gpu-e2", ["gpu-e1", "gpu-e2"]),
        ("gpu-e[1-3,7],login", ["gpu-e1", "gpu-e2", "gpu-e3", "gpu-e7", "login"]),
        ("n[08-10]", ["n08", "n09", "n10"]),
        ("n[099-101]", ["n099", "n100", "n101"]),
        ("r[1-2]n[3,5]", ["r1n3", "r1n5", "r2n3", "r2n5"]),
        ("a[1]-ib", ["a1-ib"]),
        ("[1-2]", ["1", "2"]),
    ],
)
def test_hostlists(text: str, names: list[str]) -> None:
    assert expand(text) == names


@pytest.mark.parametrize(
    "text",
    ["a[", "a]", "a[1", "a[[1]]", "a[]", "a[x]", "a[3-1]", "a[1-]", ",", "a,,b", "a[1-999999999]", "a[1-999]b[1-999]"],
)
def test_what_is_not_a_hostlist(text: str) -> None:
    with pytest.raises(HostlistError):
        expand(text)


@given(st.text("ab-[],019", max_size=14))
@examples(400)
def test_whatever_is_written_ends_soon(text: str) -> None:
    with contextlib.suppress(HostlistError):
        assert len(expand(text)) <= MOST


def test_records_come_oldest_first_and_stay_until_they_are_removed(tmp_path: Path) -> None:
    # by number, not by letter: 9 is before 10
    put(tmp_path, "10-1-suspend.json", {**RECORD, "kind": "suspend", "at": 10.0})
    put(tmp_path, "9-2-resume.json", {**RECORD, "resume": NEW_RESUME})
    put(tmp_path, "11-2-resume_fail.json", {**RECORD, "kind": "resume_fail", "at": 11})
    spool = Spool(tmp_path)
    wanted = [
        ("9-2-resume.json", Intent("resume", 5.5, ("gpu-e1", "gpu-e2"), {"7": ("gpu-e1",), "8": ("gpu-e1", "gpu-e3")})),
        ("10-1-suspend.json", Intent("suspend", 10.0, ("gpu-e1", "gpu-e2"))),
        ("11-2-resume_fail.json", Intent("resume_fail", 11.0, ("gpu-e1", "gpu-e2"))),
    ]
    assert spool.read() == wanted
    assert spool.read() == wanted
    spool.remove(["9-2-resume.json", "10-1-suspend.json", "never-there"])
    assert spool.read() == wanted[2:]


def test_the_resume_file_of_slurm_22_05() -> None:
    assert parse({**RECORD, "resume": OLD_RESUME}).jobs == {"7": ("gpu-e1", "gpu-e2")}


@pytest.mark.parametrize(
    "resume",
    [
        None,
        [],
        7,
        {},
        {"jobs": None},
        {"jobs": [None, {}, {"job_id": "7", "nodes": "a"}, {"job_id": True, "nodes": "a"}]},
        {"jobs": [{"job_id": 7, "nodes_resume": "a["}]},
        {"jobs": [{"job_id": 7, "nodes_resume": None}]},
    ],
)
def test_what_slurm_did_not_write_well_is_left_out(resume: Any) -> None:
    assert parse({**RECORD, "resume": resume}) == Intent("resume", 5.5, ("gpu-e1", "gpu-e2"))


GARBAGE = {
    "empty": "",
    "no JSON": "{",
    "deep": "[" * 100_000,
    "a list": [],
    "of another version": {**RECORD, "version": 2},
    "of another kind": {**RECORD, "kind": "reboot"},
    "without nodes": {**RECORD, "nodes": None},
    "with broken nodes": {**RECORD, "nodes": "a[1"},
    "at no time": {**RECORD, "at": "now"},
    "at the end of time": '{"version": 1, "kind": "resume", "at": 1e999, "nodes": "a"}',
    "at a long number": '{"version": 1, "kind": "resume", "at": 1' + "0" * 400 + ', "nodes": "a"}',
    "surrogate": '{"version": 1, "kind": "\\ud800"}',
}


@pytest.mark.parametrize("content", GARBAGE.values(), ids=GARBAGE.keys())
def test_garbage_is_set_aside_and_the_rest_is_read(
    tmp_path: Path, content: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    said: list[str] = []
    monkeypatch.setattr(module.log, "warning", lambda event, **fields: said.append(f"{event} {fields}"))
    put(tmp_path, "1-1-resume.json", content)
    put(tmp_path, "2-1-resume.json", RECORD)
    spool = Spool(tmp_path)
    assert [name for name, _ in spool.read()] == ["2-1-resume.json"]
    (line,) = said
    assert "set aside" in line
    assert "1-1-resume.json" in line
    assert sorted(os.listdir(tmp_path)) == ["1-1-resume.json.broken", "2-1-resume.json"]
    assert [name for name, _ in spool.read()] == ["2-1-resume.json"]


@pytest.mark.timeout(60)  # to open the pipe would take for ever
def test_what_is_not_a_file_delays_no_other(tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    put(tmp_path, "secret", RECORD)
    spool = tmp_path / "spool"
    spool.mkdir()
    (spool / "1-1-resume.json").symlink_to(secret)
    os.mkfifo(spool / "2-1-resume.json")
    (spool / "3-1-resume.json").mkdir()
    put(spool, "4-1-resume.json", RECORD)
    assert [name for name, _ in Spool(spool).read()] == ["4-1-resume.json"]
    assert secret.exists()


def test_unfinished_and_foreign_files(tmp_path: Path) -> None:
    for name in ("1-1-resume.json.tmp", "2-1-resume.json.tmp", "README", "x.json"):
        put(tmp_path, name, "{")
    os.utime(tmp_path / "1-1-resume.json.tmp", (0, 0))
    assert Spool(tmp_path).read() == []
    assert sorted(os.listdir(tmp_path)) == ["2-1-resume.json.tmp", "README", "x.json.broken"]


def test_few_broken_ones_are_kept(tmp_path: Path) -> None:
    for number in range(1, 60):
        put(tmp_path, f"{number}-1-resume.json", "{")
    assert Spool(tmp_path).read() == []
    assert len(os.listdir(tmp_path)) == 20


def test_without_its_directory_it_reports_it(tmp_path: Path) -> None:
    with pytest.raises(SpoolError, match="can't be read"):
        Spool(tmp_path / "none").read()
    (tmp_path / "a").mkdir()
    with pytest.raises(SpoolError, match="can't be cleared"):
        Spool(tmp_path).remove(["a"])


def test_what_reading_costs_grows_with_the_jobs_and_no_faster(tmp_path: Path) -> None:
    def work(count: int) -> Callable[[], object]:
        folder = tmp_path / str(count)
        folder.mkdir()
        jobs = [{"job_id": n, "nodes_resume": f"gpu-e{n}", "nodes_alloc": f"gpu-e{n}"} for n in range(1, count + 1)]
        put(folder, "1-1-resume.json", {**RECORD, "nodes": f"gpu-e[1-{count}]", "resume": {"jobs": jobs}})

        def read() -> None:
            ((_, intent),) = Spool(folder).read()
            assert len(intent.jobs) == len(intent.nodes) == count

        return read

    assert growth(work, 1_000, 10_000) < 30


VALUES = st.none() | st.booleans() | st.integers() | st.floats() | st.sampled_from(["resume", "gpu-e[1-2]", "a["])
KEYS = st.sampled_from(["version", "kind", "at", "nodes", "resume", "jobs", "job_id", "nodes_resume"])
ANYTHING = st.recursive(VALUES, lambda kids: st.lists(kids, max_size=3) | st.dictionaries(KEYS, kids), max_leaves=8)


@given(st.fixed_dictionaries({}, optional=dict.fromkeys(RECORD, ANYTHING)))
@examples(300)
def test_a_record_is_understood_or_refused(changes: dict[str, Any]) -> None:
    for raw in (changes, {**RECORD, **changes}):
        with contextlib.suppress(ValueError):
            assert isinstance(parse(raw), Intent)
