"""A Slurm of its own on a machine with NVIDIA GPUs and cgroup v2, for the time of a `with`. It changes nothing there.

All of it lives in namespaces: what it writes to /etc, /var, /run, /home and /opt goes into layers that vanish, its
network has nothing but a loopback device, its processes end with the first one, and its control groups lie below one
of its own. GPUs are those of the machine. Each node is a slurmd of this machine (`slurmd -N`) with its own control
group and GPUs.

What is real: the kernel, the GPUs, Slurm, munge, and the configuration that the role writes, with lines for many nodes
on one machine. What is not: there is no systemd (`IgnoreSystemd=yes`), no accounting, and no network between nodes.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import secrets
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import IO, Any

import pytest

from gpucluster import process, shapes
from gpucluster.paths import ansible_dir
from tests.agent_program import install
from tests.ansible import render as role
from tests.waiting import PATIENCE_S, wait_for

#: A user whose jobs they are: root has none.
USER = "gpucluster-test"
#: Settings of NCCL for all users. Without the sums of the switches the limits are those of a ring, and settings that
#: forbid direct copies show. Where machines share switches, multicast of one can harm the others, too.
NCCL_CONF, NCCL_SETTINGS = "/etc/nccl.conf", "NCCL_NVLS_ENABLE=0\n"
#: Where this machine's files are seen: the agent, programs of the tests, outputs of jobs.
SHARED = Path("/opt/gpucluster-test")
_ADDRESS = "192.0.2.1"
_CGROUPS = Path("/sys/fs/cgroup")
_CONTROLLERS = ("cpuset", "cpu", "io", "memory", "pids")
_FIRST_PORT = 30001
#: What it may write to without changing the machine.
#: Not /usr as a whole: a driver may be mounted below it, and a layer hides what is mounted there.
_LAYERS = ("etc", "var", "run", "home", "opt", "usr/local/bin", "usr/local/lib")
_PROGRAMS = ("slurmctld", "slurmd", "srun", "munged", "unshare", "nsenter", "useradd", "runuser", "nvidia-smi")
_PATH = f"{os.environ.get('PATH', '')}:/usr/local/sbin:/usr/sbin:/sbin"
# The first process there. Its arguments: the folder for the layers, and those of the file system; then it waits for the
# end of the one that started it.
_INIT = f"""
import fcntl, os, signal, socket, struct, subprocess, sys
folder, shared = sys.argv[1:3]
def call(*argv):
    done = subprocess.run(argv, capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(" ".join(argv) + ": " + done.stderr)
# The kernel mounts a file system over itself nowhere.
call("umount", "--lazy", "/sys/fs/cgroup")
# That of the machine shows the network devices of the machine.
call("mount", "--types", "sysfs", "sysfs", "/sys")
call("mount", "--types", "cgroup2", "none", "/sys/fs/cgroup")
call("mount", "--types", "tmpfs", "tmpfs", folder)
for name in {_LAYERS!r}:
    own = name.replace("/", "-")
    upper, work = f"{{folder}}/{{own}}", f"{{folder}}/work-{{own}}"
    os.mkdir(upper, 0o755), os.mkdir(work)
    call("mount", "--types", "overlay", "overlay", f"/{{name}}",
         "--options", f"lowerdir=/{{name}},upperdir={{upper}},workdir={{work}}")
# /run may be a file system of its own, which the layer hides, and nothing of it is wanted here.
os.makedirs(shared)
device = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
def interface(name, request, value):
    fcntl.ioctl(device, request, struct.pack("16s16s", name, value))
interface(b"lo", 0x8914, struct.pack("H", 0x1 | 0x40))
# With 127.0.0.1 alone, getaddrinfo reports that there is no IPv4.
address = struct.pack("HH4s8x", socket.AF_INET, 0, socket.inet_aton("{_ADDRESS}"))
interface(b"lo:1", 0x8916, address)
socket.sethostname("{role.CONTROLLER}")
signal.signal(signal.SIGCHLD, signal.SIG_IGN)
os.write(1, b"up")
while os.read(0, 4096): pass
"""


def need_machine() -> None:
    """Skip the test where it is not asked for, because it keeps GPUs busy, or where this machine can't do it."""
    if not os.environ.get("GPUCLUSTER_TEST_GPU"):
        pytest.skip("it keeps all GPUs of this machine busy for ten minutes: make test-gpu")
    absent = [name for name in _PROGRAMS if shutil.which(name, path=_PATH) is None]
    reasons = {
        f"not installed: {', '.join(absent)}": bool(absent),
        "only root can do it": os.geteuid() != 0,
        "there is no cgroup v2 alone": not (_CGROUPS / "cgroup.controllers").exists(),
        "there is no NVIDIA GPU": not gpus(),
    }
    if why := [reason for reason, holds in reasons.items() if holds]:
        pytest.skip("; ".join(why))


def gpus() -> list[str]:
    """The device files of the GPUs."""
    return sorted((str(file) for file in Path("/dev").glob("nvidia[0-9]*")), key=lambda name: int(name[11:]))


def model() -> str:
    """The GPUs' model as in Slurm's GRES, from the words of their name that a shape knows."""
    name = process.run(["nvidia-smi", "--query-gpu=name", "--format=csv,noheader", "--id=0"]).stdout.lower()
    words = set(re.split(r"[^a-z0-9]+", name))
    known = {shape.gres_type for shape in shapes.catalogue().values() if shape.gres_type}
    return next(iter(sorted(known & words)), "gpu")


def node_of(pool: str) -> str:
    """The only node of a pool."""
    return f"{pool}-1"


class Machine:
    """Slurm with some pools of one node each, `<pool>-1`.

    Args:
        pools: the device files of the GPUs of its node, by pool; none for a node without GPUs.
        partitions: by pool; without an entry a pool has a partition of the same name.
        more: is called with the machine when Slurm is configured, before it starts.
    """

    def __init__(
        self,
        pools: Mapping[str, Sequence[str]],
        partitions: Mapping[str, str],
        more: Callable[[Machine], None] = lambda _: None,
    ) -> None:
        self._pools, self._partitions, self._more = pools, partitions, more
        self._group = _CGROUPS / f"gpucluster-test-{secrets.token_hex(4)}"
        self._given: set[str] = set()
        self._first: subprocess.Popen[bytes] | None = None
        self._logs: list[IO[bytes]] = []
        self._children: list[subprocess.Popen[bytes]] = []
        self._folder = Path()
        self._pid = 0

    # --- start and end -----

    def __enter__(self) -> Machine:
        self._folder = Path(tempfile.mkdtemp(prefix="gpucluster-gpu-"))
        try:
            self._boot()
            self._configure()
            self._more(self)
            self._start("munged", "runuser", "-u", "munge", "--", "munged", "--foreground", "--num-threads=2")
            self._wait("munge answers", "munge", "-n")
            self._start("slurmctld", "slurmctld", "-D")
            self._wait("slurmctld answers", "scontrol", "ping")
            for node in map(node_of, self._pools):
                self._start(node, "unshare", "--uts", "sh", "-c", _IN_GROUP, node, "slurmd", "-D", "-N", node)
            self.await_idle()
        except BaseException:
            print(self.logs())
            self.close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is not None:
            print(self.logs())
        self.close()

    def close(self) -> None:
        """End everything that still runs, and remove the control groups."""
        if self._first is not None:
            assert self._first.stdin is not None
            self._first.stdin.close()
            try:
                self._first.wait(timeout=PATIENCE_S)
            except subprocess.TimeoutExpired:
                self._first.kill()  # with all that is in its namespace
                self._first.wait(timeout=PATIENCE_S)
        for child in self._children:
            child.wait(timeout=PATIENCE_S)
        for log in self._logs:
            log.close()
        if self._group.exists():
            # From the innermost one; a dead process leaves its group a moment later.
            for folder, _, _ in os.walk(self._group, topdown=False):
                wait_for(f"{folder} is empty", partial(_removed, Path(folder)))
        with contextlib.suppress(OSError):  # another one needs them by now
            _give(_CGROUPS, self._given, "-")
        shutil.rmtree(self._folder, ignore_errors=True)

    def _boot(self) -> None:
        # What the machine's own groups did not give to those below them is taken back at the end.
        control = _CGROUPS / "cgroup.subtree_control"
        self._given = set(_CONTROLLERS) - set(control.read_text().split())
        _give(_CGROUPS, _CONTROLLERS)
        self._group.mkdir()
        layers = self._folder / "layers"
        layers.mkdir()
        namespaces = ("--mount", "--pid", "--net", "--uts", "--cgroup", "--fork", "--kill-child", "--mount-proc")
        enter = ("sh", "-c", _ENTER, str(self._group))
        argv = [*enter, "unshare", *namespaces, sys.executable, "-I", "-c", _INIT, str(layers)]
        self._first = subprocess.Popen(
            [*argv, str(SHARED)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=os.environ | {"PATH": _PATH}
        )
        assert self._first.stdout is not None
        assert self._first.stdout.read(2) == b"up", "the namespaces could not be made: see the output"
        children = Path(f"/proc/{self._first.pid}/task/{self._first.pid}/children").read_text().split()
        self._pid = int(children[0])
        # A group with processes gives no controller to those below it.
        (self._group / "init").mkdir()
        for member in (self._group / "cgroup.procs").read_text().split():
            (self._group / "init" / "cgroup.procs").write_text(member)
        for group in (self._group, self._group / "system.slice"):
            group.mkdir(exist_ok=True)
            _give(group, _CONTROLLERS)

    def _configure(self) -> None:
        for user in ("slurm", "munge"):
            self.run("sh", "-c", f"id {user} >/dev/null 2>&1 || useradd --system {user}")
        self.run("useradd", "--create-home", "--shell=/bin/sh", USER)
        names = " ".join((role.CONTROLLER, *map(node_of, self._pools)))
        self.write("/etc/hosts", f"127.0.0.1 localhost\n{_ADDRESS} {names}\n")
        for folder, owner in {
            "/etc/munge": "munge", "/run/munge": "munge", "/var/lib/munge": "munge", "/var/log/munge": "munge",
            "/etc/slurm": "root", "/var/lib/slurm/slurmctld": "slurm", "/var/lib/slurm/slurmd": "root",
            "/var/log/slurm": "slurm", "/run/slurmctld": "slurm",
            **{f"/var/lib/slurm/slurmd/{node_of(pool)}": "root" for pool in self._pools},
        }.items():  # fmt: skip
            self.run("install", "--directory", "--mode=755", f"--owner={owner}", folder)
        self.run("sh", "-c", "head -c 128 /dev/urandom > /etc/munge/munge.key")
        self.run("chown", "munge", "/etc/munge/munge.key")
        self.run("chmod", "400", "/etc/munge/munge.key")
        for name, text in self._files().items():
            self.write(f"/etc/slurm/{name}", text)
        self.write(NCCL_CONF, NCCL_SETTINGS)

    def _files(self) -> dict[str, str]:
        """What the role writes, and what many nodes on one machine need."""
        hardware = _hardware(process.run(["slurmd", "-C"], env={"PATH": _PATH}).stdout)
        kind = model()
        pools = [
            {
                **role.GPU_POOL, "name": name, "partition": self._partitions.get(name, name), "default": False,
                "nodes": [node_of(name)], "elastic_nodes": "", "rdma": False, "gres_type": kind if files else None,
                "gpus": len(files), "gpu_device_files": list(files), "mig": [],
                "node": {**hardware, "Gres": f"gpu:{kind}:{len(files)}" if files else None},
            }
            for name, files in self._pools.items()
        ]  # fmt: skip
        names = dict.fromkeys(str(pool["partition"]) for pool in pools)
        partitions = [
            {
                "name": name, "default": name == next(iter(names)), "max_nodes": 4, "whole_nodes": False,
                "idle_timeout": None,
                "pools": [pool["name"] for pool in pools if pool["partition"] == name],
            }
            for name in names
        ]  # fmt: skip
        inventory = {
            "slurm_pools": pools, "slurm_partitions": partitions, "slurm_power": None, "slurm_accounting": False,
            "gpucluster_hosts": [{"name": role.CONTROLLER, "address": _ADDRESS}], "slurm_cluster_name": "test",
            "slurm_default_partition": partitions[0]["name"], "slurm_hardware_emulated": False,
            "slurm_gpus_emulated": False, "health_enabled": False,
            "slurm_extra_config": {"SlurmdPidFile": "/run/slurmd-%n.pid", "SlurmdLogFile": "/var/log/slurm/%n.log"},
        }  # fmt: skip
        version = process.run(["slurmd", "-V"], env={"PATH": _PATH}).stdout.split()[-1]
        known = role.variables(inventory, role="slurm", facts=role.host_facts(cgroups=True, slurm=version))
        known["os_slurm"] |= {"spool": "/var/lib/slurm/slurmd/%n"}
        templates = ("slurm.conf", "gres.conf", "cgroup.conf", "mpi.conf", "topology.conf")
        files = {name: role.render("slurm", name, known) for name in templates}
        files["slurm.conf"] = _on_one_machine(files["slurm.conf"])
        files["cgroup.conf"] += "CgroupPlugin=cgroup/v2\nIgnoreSystemd=yes\n"
        return files

    # --- what tests use -----

    @property
    def command_prefix(self) -> tuple[str, ...]:
        """The words before a command that is to run there, as root."""
        namespaces = ("--mount", "--pid", "--net", "--uts", "--cgroup")
        # A process from outside the control groups of the namespace could not move within them.
        enter = ("sh", "-c", _ENTER, f"{self._group}/init")
        return (*enter, "nsenter", f"--target={self._pid}", *namespaces, "--wdns=/", "--", "env", "-u", "TMPDIR")

    def run(self, *argv: str, check: bool = True, given: str | None = None) -> process.Completed:
        """Run a program there as root."""
        return process.run(
            [*self.command_prefix, *argv],
            check=check,
            timeout=PATIENCE_S,
            input=given,
            env=os.environ | {"PATH": _PATH},
        )

    def as_user(self, *argv: str, check: bool = True) -> process.Completed:
        """Run a program there as the user."""
        return self.run("runuser", "-u", USER, "--", *argv, check=check)

    def write(self, path: str, text: str, mode: str = "644") -> None:
        """Write a file there."""
        self.run("sh", "-c", f'mkdir -p "$(dirname "{path}")" && cat > "{path}" && chmod {mode} "{path}"', given=text)

    def read(self, path: str) -> str:
        """The text of a file there; "" where there is none."""
        return self.run("cat", path, check=False).stdout

    def start(self, *argv: str, user: str = USER) -> subprocess.Popen[bytes]:
        """Start a program there as a user; the machine waits for its end."""
        child = self._popen(["runuser", "-u", user, "--", *argv], subprocess.DEVNULL)
        self._children.append(child)
        return child

    def end(self, child: subprocess.Popen[bytes]) -> None:
        """End a program that `start` has started, with all that it has started: nsenter passes no signal on."""
        for pid in (*_descendants(child.pid), child.pid):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        child.wait(timeout=PATIENCE_S)

    def await_idle(self) -> None:
        """Wait until no job is left, and all nodes are idle."""
        wait_for("no job is left", lambda: not self.run("squeue", "--noheader").stdout.strip(), state=self.logs)
        wait_for("all nodes are idle", lambda: set(self.states().values()) == {"idle"}, state=self.logs)

    def states(self) -> dict[str, str]:
        """The state of each node, as sinfo prints it."""
        said = self.run("sinfo", "--noheader", "--all", "--Node", "--format=%N %T", check=False).stdout
        return dict(line.split() for line in said.splitlines())

    def srun(self, *words: str, check: bool = True) -> process.Completed:
        """Run a job of the user to its end."""
        return self.as_user("srun", "--quiet", "--input=none", "--chdir=/", *words, check=check)

    def logs(self) -> str:
        """The end of each log."""
        files = sorted((self._folder / "logs").glob("*")) if self._folder.is_dir() else []
        return "\n".join(f"== {file.name}\n{file.read_text(errors='replace')[-3000:]}" for file in files)

    def _start(self, name: str, *argv: str) -> None:
        folder = self._folder / "logs"
        folder.mkdir(exist_ok=True)
        log = (folder / f"{name}.log").open("wb")
        self._logs.append(log)
        self._children.append(self._popen(argv, log))

    def _popen(self, argv: Sequence[str], output: IO[bytes] | int) -> subprocess.Popen[bytes]:
        environment = os.environ | {"PATH": _PATH}
        return subprocess.Popen(
            [*self.command_prefix, *argv], stdin=subprocess.DEVNULL, stdout=output, stderr=output, env=environment
        )

    def _wait(self, what: str, *argv: str) -> None:
        wait_for(what, lambda: self.run(*argv, check=False).returncode == 0, interval=0.1, state=self.logs)


def uuids(said: str) -> list[str]:
    """The UUIDs of GPUs in a text, as `nvidia-smi -L` has them."""
    return re.findall(r"GPU-[0-9a-f-]{36}", said)


def gpus_of_two_jobs(machine: Machine, partition: str, script: str, word: str) -> tuple[list[str], list[str]]:
    """Submit two jobs with a GPU each to one node; the UUIDs that each prints, taken while both run.

    Args:
        script: prints them and then `word`, and goes on until it is ended.
    """
    if len(gpus()) < 2:
        pytest.skip("this machine has one GPU")
    outputs = [f"/home/{USER}/two-jobs-{number}.out" for number in (1, 2)]
    held = (f"--partition={partition}", "--gpus=1", "--mem=1G", "--cpus-per-gpu=2")
    for output in outputs:
        machine.as_user("sbatch", "--quiet", f"--output={output}", "--chdir=/", *held, f"--wrap={script}")
    try:
        wait_for(f"both say {word}", lambda: all(word in machine.read(file) for file in outputs), state=machine.logs)
        first, second = (uuids(machine.read(file)) for file in outputs)
        return first, second
    finally:
        machine.as_user("scancel", "--full", f"--user={USER}", check=False)
        machine.await_idle()


def bring_agent(machine: Machine) -> str:
    """Put the agent there, as hosts have it; returns its path."""
    place = f"{SHARED}/gpucluster-agent"
    with tempfile.TemporaryDirectory() as folder:
        archive = install(Path(folder)).read_bytes()
    process.run([*machine.command_prefix, "sh", "-c", f"cat > {place} && chmod 755 {place}"], input=archive)
    return place


def run_module(machine: Machine, name: str, arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Run a module of the roles there, as a playbook runs it; returns its result."""
    result = "/run/result.json"
    keep = {"content": "{{ it | to_json }}", "dest": result}
    tasks = [{name: dict(arguments), "register": "it"}, {"ansible.builtin.copy": keep}]
    machine.write("/run/play.yml", json.dumps([{"hosts": "localhost", "gather_facts": False, "tasks": tasks}]))
    path = f"PYTHONPATH={ansible_dir().parent}:{os.environ.get('PYTHONPATH', '')}"  # for action plugins
    config = f"ANSIBLE_CONFIG={ansible_dir() / 'ansible.cfg'}"
    folders = [f"ANSIBLE_{kind}=/run/ansible" for kind in ("HOME", "LOCAL_TEMP", "REMOTE_TEMP")]
    words = (
        "--inventory=localhost,",
        "--connection=local",
        f"--extra-vars=ansible_python_interpreter={sys.executable}",
    )
    program = (sys.executable, "-m", "ansible.cli.playbook")
    done = machine.run("env", path, config, *folders, *program, *words, "/run/play.yml", check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    found: dict[str, Any] = json.loads(machine.read(result))
    return found


# The first argument is the control group, then the words of a program follow.
_ENTER = 'echo 0 > "$0/cgroup.procs" && exec "$@"'
# Each daemon of a node has a group of its own, as its systemd unit gives it one, and the name of its host: MPI compares
# it with the name of the node, to find which ranks share a host.
_IN_GROUP = (
    'group="/sys/fs/cgroup/system.slice/$0"; mkdir "$group" && echo 0 > "$group/cgroup.procs" && '
    'echo "$0" > /proc/sys/kernel/hostname && exec "$@"'
)


def _give(group: Path, controllers: Iterable[str], sign: str = "+") -> None:
    """Give controllers to the groups below one, or take them from there."""
    (group / "cgroup.subtree_control").write_text(" ".join(f"{sign}{name}" for name in controllers))


def _descendants(pid: int) -> Iterator[int]:
    """The processes that a process has started, and those that they have started."""
    with contextlib.suppress(OSError):  # it has ended
        for child in map(int, Path(f"/proc/{pid}/task/{pid}/children").read_text().split()):
            yield child
            yield from _descendants(child)


def _removed(group: Path) -> bool:
    with contextlib.suppress(OSError):
        group.rmdir()
    return not group.exists()


def _hardware(said: str) -> dict[str, Any]:
    """Slurm's facts of the machine, from `slurmd -C`; its memory is shared by the nodes."""
    facts = dict(word.partition("=")[::2] for word in said.split() if "=" in word)
    cores = {key: int(facts[key]) for key in ("CoresPerSocket", "ThreadsPerCore")}
    sockets = int(facts.get("SocketsPerBoard") or facts["Sockets"])
    return {"Sockets": sockets, **cores, "RealMemory": int(facts["RealMemory"]) // 4}


def _on_one_machine(text: str) -> str:
    """A port for each node; and no prologs, which are programs that the roles install."""
    ports: Iterator[int] = iter(range(_FIRST_PORT, _FIRST_PORT + 100))

    def line(given: str) -> str:
        if given.startswith("NodeName="):
            where = f" NodeHostname={role.CONTROLLER} NodeAddr={_ADDRESS} Port={next(ports)}"
            name, _, facts = given.partition(" ")
            return f"{name}{where} {facts}"
        return given

    prolog = ("Prolog=", "Epilog=", "HealthCheck", "TaskProlog=")
    return "\n".join(line(each) for each in text.splitlines() if not each.startswith(prolog)) + "\n"
