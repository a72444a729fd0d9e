"""Bytecode of the agent: made by the first start as root, used by all others, and never in the way."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest

from gpucluster.artifacts import agent_archive
from gpucluster.node_agent import compiled, version
from tests.agent_program import install


class Host:
    """A place with an agent whose bytecode lies beside it."""

    def __init__(self, base: Path, monkeypatch: pytest.MonkeyPatch, *, node: bool) -> None:
        self.node = node
        self.base, self.cache, self.agent = base, base / "cache", base / "gpucluster-agent"
        main = agent_archive._MAIN.replace(
            "sys.path[0])", f"sys.path[0]), Path({str(self.agent)!r}), Path({str(self.cache)!r})"
        )
        assert main != agent_archive._MAIN
        # What has been imported prints from where, on standard error.
        seff = "sys.modules['gpucluster.node_agent.seff'].__file__"
        end = f"import atexit\natexit.register(lambda: sys.stderr.write({seff}))\n"
        monkeypatch.setattr(agent_archive, "_MAIN", main.replace("sys.exit(", end + "sys.exit("))

    def install(self) -> None:
        install(self.base, node=self.node)

    def start(self, *before: str) -> str:
        """Where the modules came from: "source" or "bytecode"."""
        argv = [*before, sys.executable, "-I", str(self.agent), "seff", "--help"]
        done = subprocess.run(
            argv, cwd="/", env={"PATH": os.environ["PATH"]}, capture_output=True, text=True, check=False
        )
        assert (done.returncode, done.stdout[:11]) == (0, "usage: seff"), done.stderr
        place = done.stderr.splitlines()[-1]
        if place.startswith(f"{self.agent}/gpucluster/node_agent/seff.py"):
            return "source"
        assert place.startswith(f"{self.cache}/agent-"), place
        assert place.endswith(".zip/gpucluster/node_agent/seff.pyc"), place
        return "bytecode"

    def files(self) -> list[str]:
        return sorted(file.name for file in self.cache.iterdir()) if self.cache.exists() else []


@pytest.fixture
def host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Host:
    """The controller: its agent has both packages."""
    made = Host(tmp_path, monkeypatch, node=False)
    made.install()
    return made


root_only = pytest.mark.skipif(os.geteuid() != 0, reason="only root makes bytecode")


@root_only
def test_the_first_start_makes_bytecode_and_all_use_it(host: Host) -> None:
    assert host.start() == "bytecode"
    (file,) = host.cache.iterdir()
    made = file.stat()
    assert (made.st_mode & 0o777, host.cache.stat().st_mode & 0o777) == (0o644, 0o755)
    assert host.start() == "bytecode"
    assert file.stat().st_mtime_ns == made.st_mtime_ns


@root_only
def test_a_node_has_bytecode_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    node = Host(tmp_path, monkeypatch, node=True)
    node.install()
    assert [node.start(), node.start()] == ["bytecode"] * 2


@root_only
def test_modules_of_both_packages_come_from_it(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    shown = "import gpucluster.controller.share as m; sys.stderr.write(m.__file__ + '\\n')\n"
    monkeypatch.setattr(agent_archive, "_MAIN", agent_archive._MAIN.replace("import atexit", f"{shown}import atexit"))
    host.install()
    argv = [sys.executable, "-I", str(host.agent), "seff", "--help"]
    done = subprocess.run(argv, capture_output=True, text=True, check=True)
    assert done.stderr.splitlines()[0].endswith(".zip/gpucluster/controller/share.pyc")


@root_only
def test_a_link_to_the_agent_uses_it(host: Host) -> None:
    host.start()
    (host.base / "seff").symlink_to(host.agent)
    done = subprocess.run(
        [sys.executable, "-I", str(host.base / "seff"), "--help"], capture_output=True, text=True, check=True
    )
    assert done.stderr.endswith(".zip/gpucluster/node_agent/seff.pyc"), done.stderr


@root_only
@pytest.mark.parametrize(
    "harm", ["cut", "empty", "no zip", "another agent's", "writable", "another user's", "a link", "a full disk"]
)
def test_a_damaged_file_is_not_a_fault(host: Host, harm: str) -> None:
    host.start()
    (file,) = host.cache.iterdir()
    content = file.read_bytes()
    if harm in ("cut", "empty"):
        file.write_bytes(content[: len(content) // 2 if harm == "cut" else 0])
    elif harm == "no zip":
        file.write_bytes(b"x" * len(content))
    elif harm == "another agent's":
        file.rename(file.with_name(file.name.replace("agent-", "agent-0")))
        host.cache.chmod(0o777)
    elif harm == "writable":
        file.chmod(0o666)
    elif harm == "another user's":
        os.chown(host.cache, 65534, 65534)
    elif harm == "a link":
        target = file.rename(host.base / "elsewhere.zip")
        file.symlink_to(target)
    else:
        file.unlink()
        host.cache.rmdir()
        host.cache.write_text("")
    assert host.start() == "source"


@root_only
def test_a_user_uses_what_root_has_made_and_makes_nothing(host: Host) -> None:
    # Folders of tests are closed for others: it may read them all, and write to none.
    reads = ["--inh-caps=+dac_read_search", "--ambient-caps=+dac_read_search"]
    as_user = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups", *reads]
    assert host.start(*as_user) == "source"
    assert host.files() == []
    host.start()
    assert host.start(*as_user) == "bytecode"


@root_only
def test_a_sandbox_that_can_not_write_uses_sources_or_what_is_there(host: Host) -> None:
    sandbox = [
        "unshare",
        "--mount",
        "sh",
        "-c",
        f'mount --bind {host.base} {host.base} && mount -o remount,bind,ro {host.base} && exec "$@"',
        "sh",
    ]
    assert host.start(*sandbox) == "source"
    host.start()
    assert host.start(*sandbox) == "bytecode"


@root_only
def test_an_agent_that_changes_has_its_own_and_only_the_last_two_stay(
    host: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = version.files()
    seen = []
    for number in range(3):
        changed = [(path, content + b"# %d\n" % number) for path, content in files]
        monkeypatch.setattr(version, "files", lambda _names=(), changed=changed: changed)
        host.install()
        assert host.start() == "bytecode"
        seen.append(host.files())
    assert [len(each) for each in seen] == [1, 2, 2]
    assert not set(seen[0]) & set(seen[2])


def test_another_python_has_another_file(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    before = compiled.name(host.agent)
    monkeypatch.setattr(importlib.util, "MAGIC_NUMBER", b"abcd")
    assert compiled.name(host.agent) != before


@root_only
def test_an_agent_elsewhere_leaves_nothing(host: Host, tmp_path: Path) -> None:
    other = tmp_path / "other"
    other.mkdir()
    host.agent.rename(other / "gpucluster-agent")
    host.agent = other / "gpucluster-agent"
    assert host.start() == "source"
    assert host.files() == []


@root_only
def test_the_agent_reports_the_checksum_of_its_sources(host: Host) -> None:
    host.start()
    assert host.files()
    argv = [sys.executable, "-I", str(host.agent), "--version"]
    done = subprocess.run(argv, capture_output=True, text=True, check=False)
    assert version.checksum() in done.stdout


@root_only
def test_the_source_of_a_module_can_be_read_as_without_bytecode(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    """The list of users is changed by a program that is sent to each host: a module of the agent, as text."""
    read = "import pkgutil; assert b'def ' in pkgutil.get_data('gpucluster.controller.users', 'on_host.py')\n"
    shown = "import gpucluster.controller.users.on_host as m; assert m.__loader__.get_source(m.__name__)\n"
    main = agent_archive._MAIN.replace("import atexit", f"{read}{shown}import atexit")
    assert main != agent_archive._MAIN
    monkeypatch.setattr(agent_archive, "_MAIN", main)
    host.install()
    assert host.start() == "bytecode"
    assert host.start() == "bytecode"
