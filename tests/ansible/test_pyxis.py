"""The container plugin: when it is built, when it is copied, and Slurm's configuration for it."""

from __future__ import annotations

import base64
import io
import sys
import tarfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.ansible.loading import FakeModule, ModuleFailed, load, read
from tests.ansible.render import evaluate, host_facts, render, variables

# Ansible puts it there on a host.
sys.modules["ansible.module_utils.gpucluster_archives"] = load("module_utils/gpucluster_archives.py")
gpucluster_pyxis = load("library/gpucluster_pyxis.py")
gpucluster_host = load("module_utils/gpucluster_host_facts.py")

SOURCE, HEADERS = "a" * 64, "#define SLURM_VERSION_NUMBER 0x180b05\n"


class Host(FakeModule):
    """A host with Slurm, whose compiler records its calls."""

    def __init__(self, folder: Path, *, slurm: str = "24.11.5", make: int = 0, check_mode: bool = False) -> None:
        super().__init__(check_mode=check_mode)
        self.slurm, self.make, self.built = slurm, make, 0
        self.params = {
            "path": str(folder / "lib" / "spank_pyxis.so"),
            "source": SOURCE,
            "archive": None,
            "ready": None,
            "state": "present",
        }

    def run_command(self, argv: list[str], **options: Any) -> tuple[int, str, str]:
        if argv[0] != "make":
            return 0, f"slurm-wlm {self.slurm}\n", ""
        self.built += 1
        if self.make == 0:
            Path(options["cwd"], "spank_pyxis.so").write_bytes(b"plugin for " + self.slurm.encode())
        return self.make, "", "double.c:1: error: no such header"


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder for the files of a host; programs and headers are fictitious."""
    monkeypatch.setattr(gpucluster_pyxis.shutil, "which", lambda name: f"/usr/sbin/{name}")
    monkeypatch.setattr(gpucluster_pyxis, "HEADERS", tmp_path / "slurm_version.h")
    (tmp_path / "slurm_version.h").write_text(HEADERS)
    with tarfile.open(tmp_path / "pyxis.tar.gz", "w:gz") as archive:
        for name in ("pyxis-0.24.0/Makefile", "pyxis-0.24.0/tests/Makefile"):
            entry = tarfile.TarInfo(name)
            entry.size = 5
            archive.addfile(entry, io.BytesIO(b"all:\n"))
    return tmp_path


def present(host: Host, **changes: Any) -> dict[str, Any]:
    host.params |= changes
    found: dict[str, Any] = gpucluster_pyxis.Plugin(host).present()
    return found


def build(host: Host, place: Path) -> dict[str, Any]:
    return present(host, archive=str(place / "pyxis.tar.gz"))


def shared(host: Host) -> dict[str, str]:
    found: dict[str, str] = gpucluster_pyxis.Plugin(host).read()["plugin"]
    return found


def test_a_host_without_it_is_told_to_build_and_nothing_happens(place: Path) -> None:
    host = Host(place)
    assert present(host) == {"changed": False, "differs": True, "must_build": True}
    assert not Path(host.params["path"]).parent.exists()


def test_it_is_built_once(place: Path) -> None:
    host = Host(place)
    assert build(host, place)["changed"]
    assert present(host, archive=None) == {"changed": False, "differs": False, "must_build": False}
    assert host.built == 1
    assert sorted(file.name for file in Path(host.params["path"]).parent.iterdir()) == [
        "spank_pyxis.json",
        "spank_pyxis.so",
    ]


@pytest.mark.parametrize("change", ["slurm", "source", "file", "note"])
def test_it_is_built_again_when_something_is_not_as_it_was(place: Path, change: str) -> None:
    host = Host(place)
    build(host, place)
    file = Path(host.params["path"])
    if change == "slurm":
        host.slurm = "24.11.6"
    elif change == "source":
        host.params["source"] = "b" * 64
    elif change == "file":
        file.write_bytes(b"something else")
    else:
        file.with_suffix(".json").unlink()
    found = present(host, archive=None)
    assert found["must_build"]
    # A damaged file is built again with the same content, so no host differs.
    assert found["differs"] is (change != "file")
    build(host, place)
    assert host.built == 2
    assert not present(host, archive=None)["must_build"]


def test_a_host_of_the_same_kind_takes_what_another_has_built(place: Path) -> None:
    first, second = Host(place / "first"), Host(place / "second")
    build(first, place)
    assert present(second, ready=shared(first)) == {"changed": True, "differs": True, "must_build": False}
    assert second.built == 0
    assert Path(second.params["path"]).read_bytes() == Path(first.params["path"]).read_bytes()
    assert Path(second.params["path"]).stat().st_mode & 0o777 == 0o644


def test_a_host_of_another_kind_builds_for_itself(place: Path) -> None:
    first, second = Host(place / "first"), Host(place / "second", slurm="24.11.6")
    build(first, place)
    assert present(second, ready=shared(first))["must_build"]


def test_in_check_mode_nothing_is_written(place: Path) -> None:
    host = Host(place, check_mode=True)
    ready = {"key": gpucluster_pyxis.Plugin(host).key(), "content": base64.b64encode(b"x").decode()}
    assert present(host, ready=ready)["changed"]
    assert build(Host(place, check_mode=True), place)["changed"]
    assert not (place / "lib").exists()


def test_the_output_of_the_compiler_is_reported(place: Path) -> None:
    with pytest.raises(ModuleFailed, match=r"Slurm 24\.11\.5: double\.c:1: error"):
        build(Host(place, make=2), place)
    assert not (place / "lib").exists()


@pytest.mark.parametrize(("slurm", "good"), [("24.11.0", True), ("24.05.5", False), ("25.11.5", False)])
def test_headers_of_another_release_are_refused(place: Path, slurm: str, good: bool) -> None:
    host = Host(place, slurm=slurm)
    if good:
        assert build(host, place)["changed"]
    else:
        with pytest.raises(ModuleFailed, match=rf"Slurm {slurm} and the headers of Slurm 24\.11"):
            build(host, place)


def test_an_archive_of_something_else_is_refused(place: Path) -> None:
    with tarfile.open(place / "pyxis.tar.gz", "w:gz") as archive:
        archive.addfile(tarfile.TarInfo("README"))
    with pytest.raises(ModuleFailed, match="no Makefile"):
        build(Host(place), place)
    (place / "pyxis.tar.gz").write_bytes(b"<html>")
    with pytest.raises(ModuleFailed, match="could not be unpacked"):
        build(Host(place), place)


def test_it_goes_without_a_trace_once(place: Path) -> None:
    host = Host(place)
    build(host, place)
    assert gpucluster_pyxis.Plugin(host).absent() == {"changed": True}
    assert not (place / "lib").exists()
    assert gpucluster_pyxis.Plugin(host).absent() == {"changed": False}
    assert gpucluster_pyxis.Plugin(host).read()["plugin"] is None


WANTED: dict[str, Any] = {
    "containers_runtimes": ["enroot"],
    "software_files": [{"component": "pyxis", "version": "0.24.0", "file": "pyxis-0.24.0.tar.gz"}],
}


def plugstack(
    version: str = "0.24.0", *, fuse: bool = True, before: str = "", unseen: Sequence[str] = (), **changes: Any
) -> list[str]:
    """Its line; `before` is the previous line, `unseen` are nodes that do not respond."""
    files = [WANTED["software_files"][0] | {"version": version}]
    facts = host_facts() | {"fuse": fuse, "container_demand": before}
    known = variables(WANTED | {"software_files": files} | changes, role="slurm", facts=facts)
    for node in unseen:
        known["hostvars"][node]["ansible_facts"] = {}
    lines = render("slurm", "plugstack.conf", known).splitlines()
    return [line for line in lines if not line.startswith("#")]


def test_slurm_demands_the_plugin_of_every_host() -> None:
    required, include = plugstack()
    assert required.split()[:2] == ["required", read("group_vars/all/cluster.yml")["container_plugin"]]
    assert "container_scope=job" in required.split()
    assert include == "include /etc/slurm/plugstack.conf.d/*.conf"
    assert "container_scope=global" in plugstack(pyxis_container_scope="global")[0].split()
    assert plugstack(containers_runtimes=["docker"]) == [include]


@pytest.mark.parametrize(
    ("version", "fuse", "wanted", "mounts"),
    [
        ("0.24.0", True, True, True),
        ("0.22", True, True, True),
        # It would not start with a setting that it does not know.
        ("0.21.0", True, True, False),
        ("0.24.0", False, True, False),
        ("0.24.0", True, False, False),
    ],
)
def test_images_are_mounted_where_plugin_and_hosts_can(version: str, fuse: bool, wanted: bool, mounts: bool) -> None:
    found = plugstack(version, fuse=fuse, pyxis_squashfuse=wanted)[0].split()
    assert ("use_squashfuse=1" in found) is mounts


def test_a_node_that_does_not_answer_changes_nothing() -> None:
    with_it, without = plugstack()[0], plugstack(fuse=False)[0]
    assert plugstack(before=with_it, unseen=["compute-2"])[0] == with_it
    assert plugstack(before=without, unseen=["compute-2"])[0] == without, "it may be the one that can't"
    assert plugstack(fuse=False, before=with_it, unseen=["compute-2"])[0] == without
    assert plugstack(before=with_it, unseen=["compute-1", "compute-2"])[0] == with_it
    assert plugstack(before=without)[0] == with_it, "now all are seen"


def test_the_demand_is_found_again() -> None:
    text = render("slurm", "plugstack.conf", variables(WANTED, role="slurm"))
    assert gpucluster_host.container_demand(text) == plugstack()[0]
    assert gpucluster_host.container_demand("# required x/spank_pyxis.so\ninclude y\n") == ""


def test_programs_count_where_they_are_wanted_and_not_about_to_come(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpucluster_host.Path, "is_char_device", lambda path: str(path) == "/dev/fuse")
    monkeypatch.setattr(gpucluster_host.shutil, "which", lambda name: name if name == "squashfuse" else None)
    both = ["squashfuse", "fuse3", "jq"]
    assert not gpucluster_host.mounts_images(both, [])
    assert gpucluster_host.mounts_images(both, ["fuse3"])
    assert gpucluster_host.mounts_images(["squashfuse"], [])
    assert gpucluster_host.mounts_images([], []), "a controller that stands for nodes that come"
    monkeypatch.setattr(gpucluster_host.Path, "is_char_device", lambda _path: False)
    assert not gpucluster_host.mounts_images(both, both)


SINFO = ["compute-1 idle", "compute-e1 idle", "compute-e2 allocated", "compute-e3 idle~", "compute-e4 powering_down"]
LINE = "required /usr/local/lib/slurm/spank_pyxis.so runtime_path=/run/pyxis execute_entrypoint=0 sbatch_support=1"


def value(expression: str, given: Mapping[str, Any]) -> Any:
    return evaluate(f"{{{{ {expression} }}}}", given)


@pytest.mark.parametrize(
    ("differs", "before", "elastic", "asks"),
    [
        (False, f"{LINE} container_scope=job use_squashfuse=1", True, False),
        (True, f"{LINE} container_scope=job use_squashfuse=1", True, True),
        (False, f"{LINE} container_scope=job", True, True),
        (False, "", True, True),
        (True, "", False, False),
    ],
)
def test_elastic_nodes_are_asked_for_when_something_changes_for_them(
    differs: bool, before: str, elastic: bool, asks: bool
) -> None:
    (task,) = (task for task in read("roles/pyxis/tasks/present.yml") if "check_elastic" in str(task))
    power = {"slurm_power": {"resume_timeout": 1} if elastic else None}
    known = variables(WANTED | power, role="pyxis", facts=host_facts() | {"container_demand": before})
    # Ansible refuses a condition that is not a boolean.
    assert value(task["when"], known | {"pyxis_installed": {"differs": differs}}) is asks


def test_elastic_nodes_that_are_up_are_named() -> None:
    (task,) = (task for task in read("roles/pyxis/tasks/check_elastic.yml") if "ansible.builtin.assert" in task)
    given = variables(WANTED, role="pyxis") | task["vars"] | {"pyxis_sinfo": {"stdout_lines": SINFO}}
    assert value("pyxis_up", given) == ["compute-e1", "compute-e2"]
    assert value(task["ansible.builtin.assert"]["that"], given) is False


def test_the_prolog_reaches_nodes_with_the_configuration() -> None:
    text = render("slurm", "slurm.conf", variables(WANTED, role="slurm"))
    name = read("roles/slurm/vars/main.yml")["slurm_prolog"]
    assert "/" not in name
    assert {f"Prolog={name}", "PrologFlags=Contain"} <= set(text.splitlines())
    without = {"health_enabled": False}
    assert "Prolog=" not in render("slurm", "slurm.conf", variables(without, role="slurm"))
    open_nodes = {"slurm_login_needs_job": False}
    assert (
        "PrologFlags=Alloc" in render("slurm", "slurm.conf", variables(WANTED | open_nodes, role="slurm")).splitlines()
    )
    assert "Prolog" not in render("slurm", "slurm.conf", variables(open_nodes | without, role="slurm"))
    program = read("group_vars/all/cluster.yml")["container_prolog"]
    assert f"[ ! -x {program} ] || {program} || exit 1" in render("slurm", "prolog.sh", variables(WANTED, role="slurm"))
