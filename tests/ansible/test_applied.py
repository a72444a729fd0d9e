"""Whether a host is as the last complete apply left it. A real systemd shows units in tests/e2e/test_main_path.py."""

from __future__ import annotations

import json
import os
import stat
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.ansible.loading import ANSIBLE, load

applied = load("module_utils/gpucluster_applied.py")
FACTS = {"system": "Debian-13", "nvidia_gpus": 8, "runtimes": ["docker"]}


@pytest.fixture
def host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The root of a host's file system."""
    for name in ("etc/slurm", "usr/local/bin", "opt/gpucluster", "var/lib", "run", "proc", "home"):
        (tmp_path / name).mkdir(parents=True)
    for name, text in {
        "etc/slurm/slurm.conf": "ClusterName=a\n",
        "usr/local/bin/program": "#!/bin/sh\n",
        "opt/gpucluster/module.py": "pass\n",
        "home/keys": "ssh-ed25519 A\n",
        "var/lib/status": "Package: munge\n",
        "proc/boot": "b1\n",
        "etc/fstab": "# a comment\nserver:/home /home nfs defaults 0 0\n",
        "proc/mounts": "proc /proc proc rw 0 0\nserver:/home /home nfs rw 0 0\n",
    }.items():
        (tmp_path / name).write_text(text)
    (tmp_path / "etc/localtime").symlink_to("/usr/share/zoneinfo/UTC")
    monkeypatch.setattr(applied, "RECORD", tmp_path / "var/lib/gpucluster/applied.json")
    monkeypatch.setattr(applied, "JOURNAL", tmp_path / "run/applied")
    monkeypatch.setattr(applied, "TREES", (str(tmp_path / "etc"), str(tmp_path / "usr/local")))
    monkeypatch.setattr(applied, "LARGE_TREES", (str(tmp_path / "opt/gpucluster"),))
    monkeypatch.setattr(applied, "HOST_ENTRIES", str(tmp_path / "var/lib/hosts.json"))
    monkeypatch.setattr(applied, "PACKAGES", (str(tmp_path / "var/lib/status"), str(tmp_path / "var/lib/rpm")))
    monkeypatch.setattr(applied, "BOOT", str(tmp_path / "proc/boot"))
    monkeypatch.setattr(applied, "FSTAB", str(tmp_path / "etc/fstab"))
    monkeypatch.setattr(applied, "MOUNTS", str(tmp_path / "proc/mounts"))
    return tmp_path


UP = {"ActiveState": "active", "UnitFileState": "enabled"}


def seen(facts: dict[str, Any] = FACTS, permanent: Iterable[str] = (), unit: dict[str, str] = UP) -> Any:
    """What is compared besides files. The double of systemd reports the same of each unit."""
    return applied.Host(facts, permanent, lambda names: dict.fromkeys(names, unit))


def reason(inputs: str = "1", facts: dict[str, Any] = FACTS) -> str:
    """Why all tasks would run."""
    look = applied.look(inputs, lambda _asked: seen(facts))
    return ", ".join(look.differing) or str(look.reason)


def apply(host: Path, inputs: str = "1") -> list[str]:
    """A run that writes two files; what it could not record."""
    applied.begin(inputs)
    applied.note([str(host / "etc/slurm/slurm.conf"), str(host / "home/keys"), str(host / "home/removed")], [])
    differing: list[str] = applied.record(inputs, {}, seen())
    return differing


def test_a_host_that_was_not_touched_has_not_changed(host: Path) -> None:
    assert reason() == "no complete run is known"
    assert apply(host) == []
    assert reason() == ""
    assert reason(facts=dict(reversed(list(FACTS.items())))) == ""
    assert stat.S_IMODE(applied.RECORD.stat().st_mode) == 0o600


def _remount(host: Path) -> None:
    (host / "proc/mounts").write_text("other:/home /home nfs rw 0 0\n")


def _link(path: Path) -> None:
    path.unlink()
    path.symlink_to("/usr/share/zoneinfo/Asia/Tokyo")


def _other_time(host: Path) -> None:
    os.utime(host / "opt/gpucluster/module.py", (1, 1))


CHANGES: dict[str, tuple[Callable[[Path], Any], str]] = {
    "a file was edited": (lambda host: (host / "etc/slurm/slurm.conf").write_text("x"), "file {}/etc/slurm/slurm.conf"),
    "a file has another mode": (
        lambda host: (host / "usr/local/bin/program").chmod(0o777),
        "file {}/usr/local/bin/program",
    ),
    "a file has another owner": (
        lambda host: os.chown(host / "etc/slurm/slurm.conf", 5, -1),
        "file {}/etc/slurm/slurm.conf",
    ),
    "a file is gone": (lambda host: (host / "usr/local/bin/program").unlink(), "file {}/usr/local/bin/program"),
    "a file is new": (lambda host: (host / "etc/slurm/new.conf").touch(), "file {}/etc/slurm/new.conf"),
    "a file is a folder now": (lambda host: (host / "home/removed").mkdir(), "file {}/home/removed"),
    "a folder has another mode": (lambda host: (host / "etc/slurm").chmod(0o700), "file {}/etc/slurm"),
    "a link leads elsewhere": (lambda host: _link(host / "etc/localtime"), "file {}/etc/localtime"),
    "a file of a task outside of the trees": (lambda host: (host / "home/keys").write_text("x"), "file {}/home/keys"),
    "a module of a program": (_other_time, "file {}/opt/gpucluster/module.py"),
    "packages": (lambda host: (host / "var/lib/status").write_text("Package: other\n"), "file {}/var/lib/status"),
    "a share is not mounted": (
        lambda host: (host / "proc/mounts").write_text("proc /proc proc rw 0 0\n"),
        "mount /home",
    ),
    "another share is mounted": (_remount, "mount /home"),
    "another boot": (lambda host: (host / "proc/boot").write_text("b2\n"), "fact boot"),
}


@pytest.mark.parametrize("what", CHANGES)
def test_each_change_is_seen_and_named(host: Path, what: str) -> None:
    change, name = CHANGES[what]
    apply(host)
    change(host)
    assert reason() == name.format(host)


def test_other_facts_are_seen(host: Path) -> None:
    apply(host)
    assert reason(facts={**FACTS, "nvidia_gpus": 7}) == "fact nvidia_gpus"
    assert reason(facts={**FACTS, "mig": True}) == "fact mig"


def test_another_password_of_a_permanent_host_is_seen_and_elastic_nodes_come_and_go(host: Path) -> None:
    file = host / "var/lib/hosts.json"
    hosts = ["controller", "compute-1"]
    entries = {"controller": {"password": "a"}, "compute-1": {"password": "b"}}
    file.write_text(json.dumps({"hosts": entries}))
    applied.begin("1")
    assert applied.record("1", {}, seen(permanent=hosts)) == []

    def differing() -> list[str]:
        changed: list[str] = applied.look("1", lambda _asked: seen(permanent=hosts)).differing
        return changed

    file.write_text(json.dumps({"hosts": {"elastic-e1": {"password": "c"}, **entries}}))
    assert differing() == []
    for text in (json.dumps({"hosts": {**entries, "compute-1": {"password": "d"}}}), '{"hosts": {}}', "[]", "{", "\0"):
        file.write_text(text)
        assert differing() == [f"file {file}"]
    file.unlink()
    assert differing() == [f"file {file}"]


def test_a_unit_of_a_task_that_is_down_or_not_enabled_is_seen(host: Path) -> None:
    applied.begin("1")
    applied.note([], ["slurmd.service"])
    assert applied.record("1", {}, seen()) == []

    def differing(**unit: str) -> list[str]:
        changed: list[str] = applied.look("1", lambda _asked: seen(unit={**UP, **unit})).differing
        return changed

    assert differing() == []
    assert differing(ActiveState="reloading") == []
    assert differing(ActiveState="failed") == ["unit slurmd.service"]
    assert differing(UnitFileState="disabled") == ["unit slurmd.service"]


def test_what_systemd_does_not_answer_is_not_a_proof(host: Path) -> None:
    def silent(_names: list[str]) -> dict[str, dict[str, str]]:
        raise applied.UnitFailed("systemctl: no bus")

    applied.begin("1")
    applied.note([], ["slurmd.service"])
    assert applied.record("1", {}, seen()) == []
    look = applied.look("1", lambda _asked: applied.Host(FACTS, (), silent))
    assert look.reason == "no complete run is known"


def test_a_file_of_a_task_is_compared_whole_also_where_others_are_not(host: Path) -> None:
    program = host / "opt/gpucluster/module.py"
    applied.begin("1")
    applied.note([str(program)], [])
    assert applied.record("1", {}, seen()) == []
    assert reason() == ""
    times = (program.stat().st_atime_ns, program.stat().st_mtime_ns)
    program.write_text("fail\n")
    os.utime(program, ns=times)
    assert reason() == f"file {program}"


def test_the_packages_of_an_environment_are_compared_by_the_name_of_their_set(host: Path) -> None:
    deep = host / "opt/gpucluster/venvs/a1/lib"
    deep.mkdir(parents=True)
    apply(host)
    (deep / "module.py").touch()
    assert reason() == ""
    (host / "opt/gpucluster/venvs/b2").mkdir()
    assert reason() == f"file {host}/opt/gpucluster/venvs/b2"


def test_only_a_record_of_these_inputs_counts(host: Path) -> None:
    apply(host)
    assert reason("2") == "other inputs"
    assert reason("") == "other inputs"


def test_a_later_look_asks_what_the_run_has_asked_and_has_the_commands_that_are_repeated(host: Path) -> None:
    applied.begin("1")
    asked, update = {"user": "debian", "hosts": ["c"]}, {"name": "users", "argv": ["true"]}
    applied.note(updates=[update])
    applied.note(updates=[{"name": "nodes", "argv": ["true"]}, update])
    assert applied.record("1", asked, seen()) == []
    questions: list[object] = []

    def collect(question: object) -> Any:
        questions.append(question)
        return seen()

    look = applied.look("1", collect)
    assert questions == [asked]
    assert [each["name"] for each in look.updates] == ["users", "nodes"], "in their order, each once"
    assert applied.look("2", collect).updates == ()


@pytest.mark.parametrize(
    "text", ["", "{}", "[]", "null", '{"format": 2}', '{"format": 2, "inputs": "1", "time": "x"}', "\0"]
)
def test_a_damaged_record_means_that_all_tasks_run(host: Path, text: str) -> None:
    apply(host)
    applied.RECORD.write_text(text)
    assert reason() == "no complete run is known"


@pytest.mark.parametrize(("age", "counts"), [(applied.MAX_AGE + 1, False), (-60, False), (applied.MAX_AGE - 60, True)])
def test_what_is_old_or_of_the_future_does_not_count(host: Path, age: int, counts: bool) -> None:
    apply(host)
    record = json.loads(applied.RECORD.read_text())
    applied.RECORD.write_text(json.dumps({**record, "time": record["time"] - age}))
    assert reason() == ("" if counts else "the last complete run was days ago")


def test_a_file_that_was_edited_after_its_task_is_not_recorded(host: Path) -> None:
    applied.begin("1")
    applied.note([str(host / "etc/slurm/slurm.conf")], [])
    (host / "etc/slurm/slurm.conf").write_text("by hand\n")
    assert applied.record("1", {}, seen()) == [f"file {host}/etc/slurm/slurm.conf"]
    assert reason() == "no complete run is known"


def test_the_last_task_that_writes_a_file_counts(host: Path) -> None:
    applied.begin("1")
    applied.note([str(host / "etc/slurm/slurm.conf")], [])
    (host / "etc/slurm/slurm.conf").write_text("of a later task\n")
    applied.note([str(host / "etc/slurm/slurm.conf")], [])
    assert applied.record("1", {}, seen()) == []


def test_a_run_that_did_not_come_to_its_end_leaves_no_record(host: Path) -> None:
    apply(host)
    applied.begin("2")
    assert reason() == "no complete run is known"
    apply(host)
    assert reason() == ""


def test_two_runs_at_once_record_nothing(host: Path) -> None:
    applied.begin("1")
    applied.begin("2")
    assert applied.record("1", {}, seen()) == ["another run at the same time"]
    assert applied.record("2", {}, seen()) == ["the journal of the run"]
    assert not applied.RECORD.exists()


def test_tasks_outside_of_an_apply_note_nothing(host: Path) -> None:
    applied.note([str(host / "etc/fstab")], ["slurmd.service"])
    assert not applied.JOURNAL.exists()


def test_many_changes_are_counted(host: Path) -> None:
    apply(host)
    for number in range(9):
        (host / f"etc/{number}").touch()
    assert reason().startswith(f"file {host}/etc/0, file {host}/etc/1, ")
    assert reason().endswith(", 4 more")


def test_the_places_are_those_of_the_roles() -> None:
    shared = {**_variables("group_vars/all/software.yml"), **_variables("roles/autoscaler/vars/main.yml")}
    assert _variables("roles/ldap/vars/main.yml")["ldap_hosts_file"] == applied.HOST_ENTRIES
    places = (*applied.TREES, *applied.LARGE_TREES)
    for name in ("software_folder", "autoscaler_environment"):
        assert any(shared[name].startswith(place) for place in places), name


def _variables(file: str) -> dict[str, Any]:
    found: dict[str, Any] = yaml.safe_load((ANSIBLE / file).read_text())
    return found
