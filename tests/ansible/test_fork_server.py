"""The process in which a host runs Ansible's modules, with an archive as Ansible sends it, and without Ansible."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.ansible.loading import ANSIBLE
from tests.waiting import PATIENCE_S, wait_for

SERVER = (ANSIBLE / "module_utils/gpucluster_fork_server.py").read_text()
# It records each import of itself.
COUNTED = (
    "import os\nwith open(os.environ['IMPORTS'], 'a') as file:\n    file.write({text!r} + '\\n')\nTEXT = {text!r}\n"
)
START = """\
import os, sys
from pathlib import Path
sys.path.insert(0, sys.argv[1])
from ansible.module_utils import counted, gpucluster_fork_server as server
folder = Path(sys.argv[2])
server.REAL = sys.executable
server.DIRECTORY, server.SOCKET, server.CLIENT = folder / "run", folder / "run/socket", folder / "lib/python"
server.IDLE_SECONDS, server.LOOK_SECONDS = float(sys.argv[3]), 0.1
server.os.geteuid = lambda: int(sys.argv[4])
print(server.start())
os.unlink(sys.argv[1])  # as Ansible's wrapper does when the module has ended
"""
TASK = """\
import sys
sys.path.insert(0, {archive!r})
from ansible.module_utils import counted, other
import ansible.modules.task
print(counted.TEXT, other.TEXT, ansible.modules.task.TEXT)
"""


def archive(path: Path, counted: str = "first") -> Path:
    """An archive with a library and a module, as small as it can be."""
    with zipfile.ZipFile(path, "w") as made:
        for package in ("ansible", "ansible/module_utils", "ansible/modules"):
            made.writestr(f"{package}/__init__.py", "")
        made.writestr("ansible/module_utils/basic.py", "")
        made.writestr("ansible/module_utils/gpucluster_fork_server.py", SERVER)
        made.writestr("ansible/module_utils/counted.py", COUNTED.format(text=counted))
        made.writestr("ansible/module_utils/other.py", f"TEXT = {path.stem!r}\n")
        made.writestr("ansible/modules/task.py", f"TEXT = {path.stem!r}\n")
    return path


class ServedFolder:
    """A folder with a server, and the program that stands for the interpreter."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.client = folder / "lib/python"
        self.env = {"PATH": os.environ["PATH"], "IMPORTS": str(folder / "imports")}

    def start(self, idle: float = 3600) -> None:
        assert self.interpreter(idle) == str(self.client)

    def interpreter(self, idle: float = 3600, uid: int = 0) -> str:
        words = (archive(self.folder / "host.zip"), self.folder, idle, uid)
        argv = [sys.executable, "-c", START, *map(str, words)]
        done = subprocess.run(argv, env=self.env, stdout=subprocess.PIPE, text=True, check=True, timeout=PATIENCE_S)
        return done.stdout.strip()

    def run(self, source: str, env: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [self.client], input=source, env={**self.env, **(env or {})}, capture_output=True, text=True, check=False
        )

    def task(self, name: str, counted: str = "first") -> str:
        done = self.run(TASK.format(archive=str(archive(self.folder / f"{name}.zip", counted))))
        assert done.returncode == 0, done.stderr
        return done.stdout.strip()

    def imports(self) -> list[str]:
        return (self.folder / "imports").read_text().split()

    def served(self) -> bool:
        """Whether a task runs in a fork of the server."""
        return "gpucluster-task" in self.run("print(open('/proc/self/comm').read())").stdout

    def server(self) -> int:
        """The only server, when it has its name: who started it is told before that."""
        (found,) = wait_for("the server has its name", self.processes)
        return found

    def processes(self) -> list[int]:
        """The servers of this folder that have their name."""
        found = []
        for path in Path("/proc").glob("[0-9]*"):
            try:
                own = f"IMPORTS={self.folder / 'imports'}".encode() in (path / "environ").read_bytes()
                if own and (path / "comm").read_text().strip() == "gpucluster-fork":
                    found.append(int(path.name))
            except OSError:
                continue
        return found


@pytest.fixture
def host(tmp_path: Path) -> Iterator[ServedFolder]:
    made = ServedFolder(tmp_path)
    yield made
    for number in made.processes():
        os.kill(number, signal.SIGKILL)


def test_tasks_share_what_the_server_has_loaded(host: ServedFolder) -> None:
    host.start()
    assert host.task("one") == "first one one"
    assert host.task("two") == "first two two"
    assert host.imports() == ["first"]


def test_a_task_of_another_version_gets_its_own_library(host: ServedFolder) -> None:
    host.start()
    assert host.task("one", counted="second") == "second one one"
    assert host.task("two") == "first two two"
    assert host.imports() == ["first", "second"]


def test_a_task_has_its_own_surroundings_and_exit_status(host: ServedFolder, tmp_path: Path) -> None:
    host.start()
    source = (
        "import atexit, os, subprocess, sys\n"
        "atexit.register(print, 'cleaned')\n"
        "print(os.environ['TASK'], os.getcwd(), oct(os.umask(0)), 'SERVER' in os.environ, sys.argv)\n"
        "print(subprocess.run(['sh', '-c', 'echo $TASK; exit 3']).returncode, file=sys.stderr)\n"
        "sys.exit(7)\n"
    )
    done = subprocess.run(
        ["sh", "-c", 'umask 027; exec "$0"', host.client], input=source, cwd=tmp_path, env={**host.env, "TASK": "mine"},
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 7
    assert done.stdout.splitlines() == ["mine", f"mine {tmp_path} 0o27 False ['']", "cleaned"]
    assert done.stderr == "3\n"


def test_an_exception_is_reported_as_by_an_interpreter(host: ServedFolder) -> None:
    host.start()
    done = host.run("raise ValueError('bad')")
    assert done.returncode == 1
    assert "ValueError: bad" in done.stderr


def test_a_task_that_is_killed_fails(host: ServedFolder) -> None:
    host.start()
    done = host.run("import os; os.kill(os.getpid(), 9)")
    assert (done.returncode, done.stderr) == (1, "the process that ran this task was ended\n")
    assert host.served()


def test_without_a_server_the_program_is_the_interpreter(host: ServedFolder) -> None:
    host.start()
    os.kill(host.server(), signal.SIGKILL)
    assert host.task("one") == "first one one"
    assert not host.served()
    assert host.imports() == ["first", "first"]


def test_a_server_ends_when_it_is_idle_or_replaced(host: ServedFolder) -> None:
    host.start()
    first = host.server()
    host.start(idle=0.5)
    wait_for("the first server, which was replaced, has ended", lambda: first not in host.processes())
    wait_for("the second server, which is idle, has ended", lambda: not host.processes())


def test_only_the_owner_reaches_the_server(host: ServedFolder) -> None:
    host.start()
    assert (host.folder / "run").stat().st_mode & 0o777 == 0o700
    assert (host.folder / "run/socket").stat().st_mode & 0o777 == 0o600


def test_without_rights_or_a_place_for_files_tasks_have_the_plain_interpreter(host: ServedFolder) -> None:
    assert host.interpreter(uid=1000) == sys.executable
    assert not (host.folder / "run").exists()
    (host.folder / "run").write_text("not a folder")
    assert host.interpreter() == sys.executable
    assert host.processes() == []


def test_a_task_that_asks_for_a_server_gets_the_one_that_runs_it(host: ServedFolder) -> None:
    host.start()
    server = host.server()
    again = "from ansible.module_utils import gpucluster_fork_server as server\nprint(server.start())\n"
    done = host.run(TASK.format(archive=str(archive(host.folder / "one.zip"))) + again)
    assert done.stdout.splitlines() == ["first one one", str(host.client)], done.stderr
    assert host.processes() == [server]


def test_the_service_that_joins_nodes_has_a_server_of_its_own_on_the_controller() -> None:
    """Its unit may write almost nowhere: a task of an apply at the same time must not run in a fork of its server."""
    unit = (ANSIBLE / "roles/autoscaler/templates/gpucluster-join.service.j2").read_text()
    (folder,) = (line for line in SERVER.splitlines() if line.startswith("DIRECTORY = "))
    assert f"TemporaryFileSystem={folder.split(chr(34))[1]}:mode=0700" in unit.splitlines()
