"""The Slurm harness: a real slurmctld and real slurmd processes, as many as a test wants, in one container.

What is real: Slurm's daemons, its power saving, its programs, munge, the hooks where they are installed. What is not:
every node is the same machine (`slurmd -N`, a port for each name), and a "boot" is the start of a process
(`start_slurmd`), which claims to have just booted (`-b`). There is no accounting database, and nothing of the roles'
configuration is in here.

Slurm checks every 30 s, counted from the start of slurmctld, whether a batch job's nodes are all up: the job is
CONFIGURING until then, or until the prolog ends: that waits where the daemon writes in `run/up` which nodes are in
service (gpucluster.autoscaler.daemon.prolog_markers), and not at all where no daemon does. An interactive job (`srun`)
waits for neither.

The container has a network of its own (loopback only) and the local cloud's base image. Commands go straight into its
namespaces (nsenter, 10 ms); it ends with the process that made it, and everything in it ends with the container.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import secrets
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import IO

import pytest

from gpucluster import process
from gpucluster.autoscaler import policy
from gpucluster.autoscaler.daemon import hooks
from tests.containers import base_image, of_this_run, provide_python
from tests.stopping import stop
from tests.waiting import PATIENCE_S, wait_for

HOOKS = Path("/opt/gpucluster/bin")
_HOOK_KINDS = ("resume", "suspend", "resume-fail")
_PROLOG = "prolog"
_CONFIG = "/etc/slurm"
_LOGS = "/var/log/slurm"
_STATE = "/var/lib/slurm/slurmctld"
# Files that this machine locks, and that scripts in the container wait for.
_GATES = "/gates"
_FIRST_PORT = 30001
_SLURMCTLD_PORT = 6817
# In /proc/net/tcp.
_LISTENING = "0A"
# slurmctld counts in whole seconds: a slurmd that registers in the second of its power-up may be one from before.
_BOOT_SECONDS = 1.1
# With 127.0.0.1 only, getaddrinfo reports that there is no IPv4, and slurmctld believes it.
_ADDRESS = "192.0.2.1"
# The first process of the container: it reaps orphaned processes, and ends when the process that started it is gone.
_INIT = """
import os, signal, sys
signal.signal(signal.SIGCHLD, signal.SIG_IGN)
os.write(1, b"up")
while os.read(0, 4096): pass
"""


@dataclass(frozen=True)
class SlurmPool:
    """Nodes `<prefix>1` to `<prefix><count>`. Pools with the same partition share it.

    Args:
        cloud: elastic nodes (State=CLOUD); else nodes that are always expected to be there.
        facts: more of what a NodeName line may have, such as {"Gres": "gpu:8"} or {"Weight": "10"}.
        partition_facts: more of what the line of its partition may have, such as {"ResumeTimeout": "5"}.
    """

    prefix: str
    count: int
    partition: str = "main"
    cloud: bool = True
    facts: Mapping[str, str] = field(default_factory=dict)
    partition_facts: Mapping[str, str] = field(default_factory=dict)

    @property
    def hostlist(self) -> str:
        return f"{self.prefix}[1-{self.count}]"


class SlurmHarness:
    """Slurm in a container, for the time of a `with`.

    Args:
        suspend_time: of the partitions with elastic pools, seconds. Slurm
            starts nothing, not even ResumeProgram, where no partition has one.
        separate: the pools' switches have no common parent, so that no job spans two pools (topology/tree).
        extra: more settings of slurm.conf, over those in here. `slurmctld_parameters`: more words of that setting.
        hooks: the directory of this machine with `resume`, `suspend` and `resume-fail`; without it, the project's own.
    """

    def __init__(
        self,
        pools: Sequence[SlurmPool] = (SlurmPool("a-e", 4),),
        *,
        suspend_time: int = 3600,
        suspend_timeout: int = 3,
        resume_timeout: int = 60,
        separate: bool = False,
        extra: Mapping[str, str] | None = None,
        slurmctld_parameters: Sequence[str] = (),
        hooks: Path | None = None,
    ) -> None:
        self.pools = tuple(pools)
        self._times = (suspend_time, suspend_timeout, resume_timeout)
        self._separate = separate
        self._extra = dict(extra or {})
        self._parameters = tuple(slurmctld_parameters)
        self._hooks = hooks
        self._container: subprocess.Popen[bytes] | None = None
        self._name = f"gpucluster-slurm_harness-{secrets.token_hex(4)}"
        self._daemons: dict[str, tuple[int, str]] = {}  # name -> pid on this machine, and its identity
        self._children: list[subprocess.Popen[bytes]] = []
        self._gates: dict[str, IO[bytes]] = {}
        self.folder = Path()
        self.pid = 0

    # --- start and end -----

    def __enter__(self) -> SlurmHarness:
        self.folder = Path(tempfile.mkdtemp(prefix="gpucluster-slurm_harness-"))
        try:
            self._boot()
            self._configure()
            self._start("munged", "runuser", "-u", "munge", "--", "munged", "--foreground", "--num-threads=2")
            self.until("munge answers", lambda: self.run("munge", "-n", check=False).returncode == 0)
            self.start_slurmctld()
        except BaseException:
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
        """End everything that still runs."""
        # Processes that entered the container must be gone first: they hold their dead children, and so the container.
        for child in self._children:
            child.kill()
            child.wait(timeout=PATIENCE_S)
        self._children.clear()
        if self._container is not None:
            assert self._container.stdin is not None
            with contextlib.suppress(BrokenPipeError):
                self._container.stdin.close()
            try:
                self._container.wait(timeout=PATIENCE_S)
            except subprocess.TimeoutExpired:
                subprocess.run(
                    ["podman", "rm", "--force", "--volumes", "--time=0", self._name], capture_output=True, check=False
                )
                self._container.kill()
                self._container.wait(timeout=PATIENCE_S)
            self._container = None
        self._daemons.clear()
        for name in list(self._gates):
            self.open(name)
        shutil.rmtree(self.folder, ignore_errors=True)

    @property
    def spool(self) -> Path:
        """Where the hooks write, on this machine."""
        return self.folder / "spool"

    @property
    def poke(self) -> Path:
        """The path of the daemon's socket, on this machine. There is no listener unless a test has one."""
        return self.folder / "run" / policy.POKE_SOCKET.name

    @property
    def state(self) -> Path:
        """A directory for the daemon's state, on this machine; the container does not see it."""
        return self.folder / "state"

    # --- commands -----

    @property
    def command_prefix(self) -> tuple[str, ...]:
        """The words before a command that is to run in the container."""
        namespaces = ("--mount", "--pid", "--net", "--uts", "--ipc")
        # The folder for temporary files of this machine is not there.
        return ("nsenter", f"--target={self.pid}", *namespaces, "--wdns=/", "--", "env", "--unset=TMPDIR")

    def run(
        self, *argv: str, check: bool = True, timeout: float = PATIENCE_S, given: str | None = None
    ) -> process.Completed:
        return process.run([*self.command_prefix, *argv], check=check, timeout=timeout, input=given)

    def scontrol(self, *words: str, check: bool = True) -> str:
        return self.run("scontrol", *words, check=check).stdout

    def sbatch(self, *options: str, script: str = "sleep 600") -> str:
        """Submit a batch job; returns its id, and that of a heterogeneous job's leader."""
        output = () if any(option.startswith("--output") for option in options) else ("--output=/dev/null",)
        wrap = () if ":" in options else (f"--wrap={script}",)
        if wrap:
            done = self.run("sbatch", "--parsable", *output, *options, *wrap)
        else:
            self.write("/tmp/job", f"#!/bin/sh\n{script}\n")
            done = self.run("sbatch", "--parsable", *output, *options, "/tmp/job")
        return done.stdout.strip()

    def scancel(self, *words: str) -> None:
        self.run("scancel", *words)

    def squeue(self, *options: str) -> dict[str, str]:
        """Job id -> its state, for the jobs that are not finished."""
        lines = self.run("squeue", "--noheader", "--format=%A %T", *options).stdout.split("\n")
        return dict(line.split(" ") for line in lines if line)

    def job(self, job: str) -> dict[str, str]:
        """The fields of `scontrol show job`; a value is cut at its first space."""
        return _facts(self.scontrol("--oneliner", "show", "job", job))

    def node(self, name: str) -> dict[str, str]:
        """The fields of `scontrol show node`; a value is cut at its first space."""
        return _facts(self.scontrol("--oneliner", "show", "node", name))

    def flags(self, name: str) -> set[str]:
        """The words of a node's State."""
        return set(self.node(name)["State"].split("+"))

    def names(self) -> list[str]:
        """Every node's name."""
        return [f"{pool.prefix}{number}" for pool in self.pools for number in range(1, pool.count + 1)]

    def write(self, path: str, text: str) -> None:
        """Write a file in the container."""
        process.run([*self.command_prefix, "sh", "-c", f"cat > {path}"], input=text, timeout=PATIENCE_S)

    # --- daemons -----

    def start_slurmctld(self) -> None:
        # The process that runs slurmctld's scripts has its sockets and ends a moment later. systemd waits for both.
        self.until("the port of slurmctld is free", lambda: not self._listens(_SLURMCTLD_PORT))
        self._start("slurmctld", "slurmctld", "-D")
        self.until("slurmctld is up", lambda: "is UP" in self.scontrol("ping", check=False))

    def _listens(self, port: int) -> bool:
        """Whether a process of the container accepts connections to a port."""
        sockets = [line.split() for line in Path(f"/proc/{self.pid}/net/tcp").read_text().splitlines()[1:]]
        return any(words[1].endswith(f":{port:04X}") and words[3] == _LISTENING for words in sockets)

    def restart_slurmctld(self, *, kill: bool = True) -> None:
        """End the controller, by SIGKILL or in order, and start it again; it keeps its state."""
        self.stop("slurmctld", kill=kill)
        self.start_slurmctld()

    def start_slurmd(self, name: str, instance_id: str = "") -> None:
        """Boot a node, unless it runs. It registers within two seconds; this returns at once."""
        if not self.runs(name):
            identity = (f"--instance-id={instance_id}",) if instance_id else ()
            boot = f'sleep {_BOOT_SECONDS} && exec "$@"'
            self._start(name, "sh", "-c", boot, "boot", "slurmd", "-D", "-b", "-N", name, *identity)

    def stop(self, name: str, *, kill: bool = True) -> None:
        """End a node's slurmd, or "slurmctld", unless it has ended."""
        pid, identity = self._daemons.pop(name, (0, ""))
        if not pid or process.identity(pid) != identity:
            return
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL if kill else signal.SIGTERM)
        self.until(f"{name} has ended", lambda: process.identity(pid) != identity)

    def runs(self, name: str) -> bool:
        pid, identity = self._daemons.get(name, (0, ""))
        return bool(pid) and process.identity(pid) == identity

    def freeze(self, name: str) -> None:
        """Stop a daemon without ending it: it accepts connections and never answers."""
        stop(self._daemons[name][0])

    def thaw(self, name: str) -> None:
        pid, _ = self._daemons[name]
        os.kill(pid, signal.SIGCONT)
        # nsenter stops itself when its child is stopped.
        for child in self._children:
            child.send_signal(signal.SIGCONT)

    # --- waiting -----

    def until(self, what: str, holds: Callable[[], object]) -> None:
        """`wait_for` a condition; the daemons' logs are in the message of a failure."""
        wait_for(what, holds, state=self.logs)

    def closed(self, gate: str) -> str:
        """Close a gate; returns a shell command that waits until `open` is called.

        The gate is a lock of this process on a file, so it opens when this process ends.
        """
        if gate not in self._gates:
            file = (self.folder / "gates" / gate).open("wb")
            fcntl.flock(file, fcntl.LOCK_EX)
            self._gates[gate] = file
        return f"flock --shared {_GATES}/{gate} true"

    def open(self, gate: str) -> None:
        """Let all pass who wait at a gate, now and later."""
        if file := self._gates.pop(gate, None):
            fcntl.flock(file, fcntl.LOCK_UN)
            file.close()

    def saved(self, job: str, node: str) -> None:
        """Wait until slurmctld has written down all that it knows now about jobs and nodes.

        It writes some seconds after a change. A word that is put into a comment now is in the files then.
        """
        word = f"saved-{secrets.token_hex(4)}"
        self.scontrol("update", f"jobid={job}", f"comment={word}")
        self.scontrol("update", f"nodename={node}", f"comment={word}")
        files = [f"{_STATE}/job_state", f"{_STATE}/node_state"]

        def written() -> bool:
            found = self.run("grep", "--files-with-matches", "--text", word, *files, check=False).stdout.split()
            return found == files

        self.until("slurmctld has saved its state", written)

    def logs(self, characters: int = 3000) -> str:
        """The end of each daemon's log."""
        files = sorted((self.folder / "logs").glob("*.log"))[:12]
        return "\n".join(f"== {file.name}\n{file.read_text(errors='replace')[-characters:]}" for file in files)

    # --- setup -----

    def _boot(self) -> None:
        from gpucluster.localcloud.podman.host import settings

        image = base_image()
        for name in ("spool", "run", "bin", "logs", "state", "gates"):
            (self.folder / name).mkdir()
        mounts = {
            "spool": str(policy.SPOOL_DIRECTORY),
            "run": str(policy.POKE_SOCKET.parent),
            "bin": str(HOOKS),
            "logs": _LOGS,
            "gates": _GATES,
        }
        pidfile = self.folder / "pid"
        options = settings().run_options()
        argv = [
            *("podman", "--runtime", settings().runtime, "run", "--rm", "--interactive", "--pull=never"),
            *("--network=none", "--hostname=ctl", f"--name={self._name}", of_this_run()),
            *(f"--pidfile={pidfile}", *options),
            *(f"--mount=type=bind,source={self.folder / name},destination={to}" for name, to in mounts.items()),
            *("--entrypoint=python3", image, "-c", _INIT),
        ]
        self._container = subprocess.Popen(
            argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, start_new_session=True
        )
        assert self._container.stdout is not None
        said = self._container.stdout.read(2)
        if said != b"up":
            pytest.fail((said + self._container.stdout.read()).decode(errors="replace"))
        self.pid = int(pidfile.read_text())

    def _configure(self) -> None:
        provide_python(self.run)
        self._install_hooks()
        script = f"""
            set -e
            ip address add {_ADDRESS}/24 dev lo
            mkdir -p {_CONFIG} {_STATE} /var/lib/slurm/slurmd /run/munge
            head -c 128 /dev/urandom > /etc/munge/munge.key
            chmod 400 /etc/munge/munge.key
            chown munge:munge /etc/munge/munge.key /run/munge
            chown slurm:slurm {_STATE} {_LOGS} {policy.SPOOL_DIRECTORY} {policy.POKE_SOCKET.parent}
            chmod 2770 {policy.SPOOL_DIRECTORY}
            """
        self.run("sh", "-c", script)
        # Slurm resolves a node's address while it holds its locks, and repeats that while there is no answer.
        self.run("sh", "-c", f"while read name; do echo {_ADDRESS} $name; done >> /etc/hosts", given=self._name_lines())
        self.write(f"{_CONFIG}/cgroup.conf", "CgroupPlugin=disabled\n")
        self.write(f"{_CONFIG}/topology.conf", self._topology())
        self.write(f"{_CONFIG}/slurm.conf", self._slurm_conf())

    def _install_hooks(self) -> None:
        own = Path(hooks.__file__)
        for kind in _HOOK_KINDS:
            target = self.folder / "bin" / kind
            source = own if self._hooks is None else self._hooks / kind
            if not source.exists():
                continue
            shutil.copyfile(source, target)
            target.chmod(0o755)
        prolog = self.folder / "bin" / _PROLOG
        shutil.copyfile(own.with_name("prolog.sh"), prolog)
        prolog.chmod(0o755)

    def _name_lines(self) -> str:
        return "".join(f"{name}\n" for name in self.names())

    def _slurm_conf(self) -> str:
        suspend_time, suspend_timeout, resume_timeout = self._times
        parameters = ["idle_on_node_suspend", "power_save_interval=1", "power_save_min_interval=0", *self._parameters]
        static = [pool.hostlist for pool in self.pools if not pool.cloud]
        settings = {
            "ClusterName": "slurm_harness",
            "SlurmctldHost": f"ctl({_ADDRESS})",
            "SlurmUser": "slurm",
            "AuthType": "auth/munge",
            "AuthInfo": "cred_expire=5",
            "StateSaveLocation": _STATE,
            "SlurmdSpoolDir": "/var/lib/slurm/slurmd/%n",
            "SlurmctldPidFile": "/run/slurmctld.pid",
            "SlurmdPidFile": "/run/slurmd-%n.pid",
            "ProctrackType": "proctrack/linuxproc",
            "TaskPlugin": "task/none",
            "SwitchType": "switch/none",
            "MpiDefault": "none",
            "SchedulerParameters": "defer,batch_sched_delay=1,sched_interval=15,bf_interval=2",
            "SlurmctldParameters": ",".join(parameters),
            "SlurmdParameters": "config_overrides",
            "SelectType": "select/cons_tres",
            "ReturnToService": "2",
            "KillWait": "2",
            # On a busy machine a daemon stands still for longer than Slurm's own times: a command would give up, and a
            # job would be requeued whose node does not answer or has not started it yet. No test waits for their end.
            "MessageTimeout": "30",
            "SlurmdTimeout": "120",
            "BatchStartTimeout": "180",
            # Tests ask for jobs that have ended long ago. After five minutes, Slurm would not know them any more.
            "MinJobAge": "86400",
            "TreeWidth": "65533",
            "DebugFlags": "Power",
            "ResumeProgram": f"{HOOKS}/resume",
            "SuspendProgram": f"{HOOKS}/suspend",
            "ResumeFailProgram": f"{HOOKS}/resume-fail",
            "PrologSlurmctld": f"{HOOKS}/{_PROLOG}",
            "ResumeRate": "0",
            "SuspendRate": "0",
            "ResumeTimeout": str(resume_timeout),
            "SuspendTimeout": str(suspend_timeout),
            "SuspendTime": "INFINITE",
            **({"SuspendExcNodes": ",".join(static)} if static else {}),
            **({"TopologyPlugin": "topology/tree"} if self._separate else {}),
            **self._extra,
        }
        lines = [f"{key}={value}" for key, value in settings.items()]
        port = _FIRST_PORT
        for pool in self.pools:
            facts = {"CPUs": "4", "RealMemory": "1000", "State": "CLOUD" if pool.cloud else "UNKNOWN", **pool.facts}
            where = f"NodeAddr={_ADDRESS} Port=[{port}-{port + pool.count - 1}]"
            lines.append(" ".join([f"NodeName={pool.hostlist} {where}", *(f"{k}={v}" for k, v in facts.items())]))
            port += pool.count
        for number, partition in enumerate(dict.fromkeys(pool.partition for pool in self.pools)):
            mine = [pool for pool in self.pools if pool.partition == partition]
            facts = {"SuspendTime": str(suspend_time)} if any(p.cloud for p in mine) else {}
            facts |= {"Default": "YES"} if number == 0 else {}
            facts = {**facts, **{key: value for pool in mine for key, value in pool.partition_facts.items()}}
            nodes = ",".join(p.hostlist for p in mine)
            lines.append(
                " ".join([f"PartitionName={partition} Nodes={nodes}", *(f"{k}={v}" for k, v in facts.items())])
            )
        return "\n".join(lines) + "\n"

    def _topology(self) -> str:
        return "".join(f"SwitchName=switch{n} Nodes={pool.hostlist}\n" for n, pool in enumerate(self.pools))

    def _start(self, name: str, *argv: str) -> None:
        """Start a daemon; its pid on this machine is that of nsenter's child."""
        with (self.folder / "logs" / f"{name}.log").open("ab") as log:
            child = subprocess.Popen([*self.command_prefix, *argv], stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        self._children.append(child)
        children = Path(f"/proc/{child.pid}/task/{child.pid}/children")

        def inside() -> list[str]:
            if child.poll() is not None:
                pytest.fail(f"{name} did not start\n{self.logs()}")
            return children.read_text().split()

        pid = int(wait_for(f"{name} starts", inside, interval=0.002, state=self.logs, ignore=OSError)[0])
        self._daemons[name] = (pid, process.identity(pid) or "")


def _facts(line: str) -> dict[str, str]:
    return dict(word.partition("=")[::2] for word in line.split() if "=" in word)
