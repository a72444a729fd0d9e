"""The cluster harness: real Slurm, the real SDK, the local cloud's real server, and the real daemon, all as processes.

    Slurm       slurmctld in a container; a "boot" starts a real slurmd there, which registers (`slurm_harness`)
    cloud       the local cloud's server with the process engine; its faults are set with `faults`
    daemon      `python -m gpucluster.autoscaler run` as a controller would run it: its requests are signed by the
                controller's instance, which may do what the product's policies allow and nothing else

What is a double: a host is a process, so there is no image, cloud-init, network or RDMA. Nodes boot in a second. The
daemon's `scontrol` and `squeue` are scripts that enter the container. See docs/explanation/elastic-nodes-proof.md.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any

from gpucluster import process
from gpucluster.localcloud import control
from gpucluster.localcloud.engine.process_engine import CONFIG, ProcessEngine
from gpucluster.process import bound
from tests.autoscaler.slurm_harness import SlurmHarness, SlurmPool
from tests.localcloud.api_harness import GPU_SHAPE, Api
from tests.localcloud.entitled import Entitled, elastic_cluster, generated
from tests.localcloud.faults import set_faults
from tests.waiting import PATIENCE_S, wait_for

CLUSTER = "harness"
ROOT = Path(__file__).resolve().parents[2]
LAUNCH = "LaunchInstanceConfiguration"
# slurmctld counts in whole seconds: a slurmd that registers in the second of its power-up may be one from before.
BOOT_SECONDS = 1.1
# As short as a scenario that waits for the end of a time allows; else far beyond what a busy machine needs. A host that
# boots and a daemon that stands still have a minute: a host that is given up is launched again, and tests count that.
TIMES: Mapping[str, float] = {
    "tick": 1.0,
    "busy_tick": 0.4,
    "listing_lag": 6.0,
    "orphan_grace": 4.0,
    "launch_deadline": 300.0,
    "join_deadline": 60.0,
    "gang_retry_window": 60.0,
    "retry_pause": 3.0,
    "backoff": 4.0,
    "backoff_limit": 16.0,
    "cool_down": 5.0,
    "cool_down_limit": 8.0,
    "limit_cool_down": 7200.0,
    "unbacked_after": 2.0,
    "silent_grace": 300.0,
}
# A host that is switched off ends its jobs. slurmstepd outlives slurmd, so it is killed first, before it can report.
_SWITCH_OFF = """
flock --shared "/gates/end-${1%-e*}" true
for script in $(pgrep -f "/slurmd/$1/job"); do kill -9 $(ps -o ppid= -p $script) $script; done
"""
# A host boots when its pool's gate is open (`hold_boots`), and is switched off when that of its pool is (`hold_ends`).
_BOOT = """
host=$1; shift
flock --shared "/gates/boot-${host%-e*}" true
exec "$@"
"""
# A folder for the logs of all parts, for an operator to read afterwards.
_KEEP = "GPUCLUSTER_HARNESS_KEEP"
# The daemon with one change: it kills itself with SIGKILL at a named point. The product has no such points.
_KILLED = """
import os, signal, sys
from gpucluster.autoscaler.daemon import loop, oci
point, number = sys.argv.pop(1), int(sys.argv.pop(1))
met = 0
def die():
    global met
    met += 1
    if met == number:
        os.kill(os.getpid(), signal.SIGKILL)
cloud = oci.OciCloud
owner, name = {"before": (cloud, "launch"), "after": (cloud, "launch"), "terminate": (cloud, "terminate"),
               "spool": (loop.AutoscalerLoop, "_forget")}[point]
real = getattr(owner, name)
def deed(*arguments, **options):
    if point in ("before", "spool"):
        die()
    answer = real(*arguments, **options)
    if point in ("after", "terminate"):
        die()
    return answer
setattr(owner, name, deed)
from gpucluster.autoscaler.__main__ import main
sys.exit(main(sys.argv[1:]))
"""


@dataclass(frozen=True)
class HarnessPool:
    """An elastic pool with nodes `<name>-e<n>`, an instance configuration and a compute cluster of its own.

    Args:
        names: how many names Slurm has; by default as many as the product declares.
        domain: which availability domain, 0 or 1. `facts`: of its nodes in Slurm, such as {"Weight": "10"}.
        partition_facts: of its partition in Slurm, such as {"ResumeTimeout": "5"}.
    """

    name: str
    max_nodes: int = 4
    partition: str = ""
    names: int = 0
    shape: str = GPU_SHAPE
    domain: int = 0
    facts: Mapping[str, str] = field(default_factory=dict)
    partition_facts: Mapping[str, str] = field(default_factory=dict)

    @property
    def prefix(self) -> str:
        return f"{self.name}-e"

    @property
    def count(self) -> int:
        return self.names or 2 * self.max_nodes + 2

    @property
    def queue(self) -> str:
        """Its partition."""
        return self.partition or self.name


class ClusterHarness:
    """All parts, for the time of a `with`. Every process that was started is ended by its id.

    Args:
        times: over `TIMES`. `limits`: of the policy. `slurm_harness`: more arguments of SlurmHarness.
        daemon: start the daemon at once.
    """

    def __init__(
        self,
        pools: Sequence[HarnessPool] = (HarnessPool("a"),),
        *,
        times: Mapping[str, float] | None = None,
        limits: Mapping[str, float] | None = None,
        slurm_harness: Mapping[str, Any] | None = None,
        boot_seconds: float = BOOT_SECONDS,
        subnet: str = "10.77.0.0/22",
        daemon: bool = True,
    ) -> None:
        self.pools = {pool.name: pool for pool in pools}
        self.times = {**TIMES, **(times or {})}
        self._limits = dict(limits or {})
        self._boot_seconds, self._subnet, self._begin = boot_seconds, subnet, daemon
        settings: dict[str, Any] = {"suspend_time": 3, "suspend_timeout": 2, "resume_timeout": 30, "separate": True}
        self.slurm_harness = SlurmHarness(
            [
                SlurmPool(pool.prefix, pool.count, pool.queue, facts=pool.facts, partition_facts=pool.partition_facts)
                for pool in pools
            ],
            **{**settings, **(slurm_harness or {})},
        )
        self.folder = Path()
        self._stack = contextlib.ExitStack()
        self._daemon: subprocess.Popen[bytes] | None = None
        self._others: list[str] = []
        self._faults: dict[str, Sequence[Mapping[str, Any]]] = {}
        self._configurations: dict[str, str] = {}  # id -> pool

    # --- start and end -----

    def __enter__(self) -> ClusterHarness:
        with contextlib.ExitStack() as stack:
            self.folder = Path(tempfile.mkdtemp(prefix="gpucluster-harness-"))
            stack.callback(shutil.rmtree, self.folder, ignore_errors=True)
            stack.enter_context(self.slurm_harness)
            self._start_cloud(stack)
            self._write_policy()
            self.tools()
            self._launch_others()
            stack.callback(self.end_daemon)
            if self._begin:
                self.start_daemon()
            self._stack = stack.pop_all()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if folder := os.environ.get(_KEEP):
            (Path(folder) / f"harness-{os.getpid()}.txt").write_text(self.story(100_000))
        self._stack.close()

    @property
    def home(self) -> Path:
        """Of the local cloud."""
        return self.folder / "cloud"

    @property
    def policy(self) -> Path:
        return self.folder / "autoscaler.json"

    def _start_cloud(self, stack: contextlib.ExitStack) -> None:
        self.home.mkdir()
        slurmd = ("slurmd", "-D", "-b", "-N", "{hostname}", "--instance-id", "{ocid}")
        engine = {
            "argv": [*self.slurm_harness.command_prefix, "sh", "-c", _BOOT, "boot", "{hostname}", *slurmd],
            "boot_seconds": self._boot_seconds,
            "stop_argv": [*self.slurm_harness.command_prefix, "sh", "-c", _SWITCH_OFF, "off", "{hostname}"],
        }
        (self.home / CONFIG).write_text(json.dumps(engine))
        stack.callback(self._end_hosts, engine)
        stack.callback(control.stop, self.home)
        self.api = Api(self.home, "process")

    def _end_hosts(self, engine: Mapping[str, Any]) -> None:
        """End all processes. The container ends with everything in it."""
        quick = {key: value for key, value in engine.items() if key != "stop_argv"}
        (self.home / CONFIG).write_text(json.dumps(quick))
        ProcessEngine(self.home).end_all()

    def _write_policy(self) -> None:
        import oci

        models = oci.core.models
        self.subnet = self.api.subnet(self.api.vcn(), self._subnet)
        domains = [one.name for one in self.api.identity.list_availability_domains(self.api.tenancy).data]
        pools = {}
        for pool in self.pools.values():
            domain = domains[pool.domain]
            tags = {"gpucluster": CLUSTER, "role": "compute", "pool": pool.name}
            vnic = models.InstanceConfigurationCreateVnicDetails(assign_public_ip=False, subnet_id=self.subnet.id)
            configuration = self.api.configuration(
                pool.shape, freeform_tags=tags, create_vnic_details=vnic, availability_domain=domain
            )
            details = models.CreateComputeClusterDetails(availability_domain=domain, compartment_id=self.api.tenancy)
            self._configurations[configuration.id] = pool.name
            pools[pool.name] = {
                "partition": pool.queue,
                "prefix": pool.prefix,
                "names": pool.count,
                "max_nodes": pool.max_nodes,
                "shape": pool.shape,
                "availability_domain": domain,
                "instance_configuration_id": configuration.id,
                "compute_cluster_id": self.api.compute.create_compute_cluster(details).data.id,
                "baked": True,
            }
        content = {
            "version": 1,
            "cluster": CLUSTER,
            "compartment_id": self.api.tenancy,
            "region": "local-1",
            "authentication": {
                "method": "api_key",
                "config_file": str(self._credentials()),
                "endpoint": self.api.endpoint,
            },
            "pools": pools,
            "limits": self._limits,
            "times": self.times,
        }
        self.policy.write_text(json.dumps(content))

    def _credentials(self) -> Path:
        """The controller's own OCI configuration. It may do what the product's policies allow, and no more."""
        self.faults([])
        controller = self.launch("other-controller", tags={"gpucluster": CLUSTER, "role": "controller"})
        self._others.append(controller)
        own = Entitled(self.api, controller, self.folder / "config", name=CLUSTER).in_group()
        own.allow([one.text for one in generated(elastic_cluster(CLUSTER), self.api, controller).controller])
        return own.config

    # --- the daemon -----

    def tools(self, **instead: str) -> None:
        """Install `scontrol` and `squeue` for the daemon: those of the Slurm harness, or a shell script instead."""
        folder = self.folder / "bin"
        folder.mkdir(exist_ok=True)
        enter = shlex.join(self.slurm_harness.command_prefix)
        for name in ("scontrol", "squeue"):
            part = folder / f".{name}"
            part.write_text(f'#!/bin/sh\n{instead.get(name, "")}\nexec {enter} /usr/bin/{name} "$@"\n')
            part.chmod(0o755)
            part.replace(folder / name)

    @property
    def daemon_arguments(self) -> list[str]:
        """The arguments of every command of the autoscaler."""
        places = {
            "config": self.policy,
            "state": self.slurm_harness.state,
            "spool": self.slurm_harness.spool,
            "poke": self.slurm_harness.poke,
        }
        return [f"--{name}={path}" for name, path in places.items()]

    @property
    def daemon_log(self) -> Path:
        return self.folder / "daemon.log"

    @property
    def daemon_pid(self) -> int:
        assert self._daemon is not None
        return self._daemon.pid

    def start_daemon(self, *, dies: str = "", number: int = 1) -> None:
        """Start the daemon.

        Args:
            dies: it kills itself "before" or "after" the `number`th launch, after the `number`th request to
                "terminate", or when it has written down what it decided and is about to empty the "spool".
        """
        assert self._daemon is None or self._daemon.poll() is not None, "it runs"
        self._daemon = self.another_daemon(dies=dies, number=number)

    def another_daemon(self, *, dies: str = "", number: int = 1) -> subprocess.Popen[bytes]:
        """A daemon of the same controller; the caller ends it."""
        program = ["-c", _KILLED, dies, str(number)] if dies else ["-m", "gpucluster.autoscaler"]
        # It ends with this process, however that ends.
        argv = [sys.executable, *program, "run", *self.daemon_arguments, "--metrics=127.0.0.1:0"]
        env = {**os.environ, "PATH": f"{self.folder / 'bin'}:{os.environ['PATH']}", "PYTHONPATH": str(ROOT)}
        with self.daemon_log.open("ab") as log:
            return subprocess.Popen(
                bound.to_this_process(argv),
                cwd="/",
                env=env,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    def kill_daemon(self) -> None:
        """End the daemon as a crash would (kill -9)."""
        assert self._daemon is not None
        self._daemon.kill()
        self._daemon.wait(timeout=PATIENCE_S)

    def daemon_died(self) -> None:
        """Wait for the daemon to have killed itself."""
        assert self._daemon is not None
        assert self._daemon.wait(timeout=PATIENCE_S) == -signal.SIGKILL, self.story()

    def end_daemon(self) -> None:
        """End the daemon as systemd would, unless it has ended."""
        if self._daemon is None:
            return
        self._daemon.terminate()
        try:
            self._daemon.wait(timeout=PATIENCE_S)
        except subprocess.TimeoutExpired:
            self._daemon.kill()
            self._daemon.wait(timeout=PATIENCE_S)

    @property
    def daemon_runs(self) -> bool:
        return self._daemon is not None and self._daemon.poll() is None

    @property
    def status(self) -> dict[str, Any]:
        """What the daemon wrote after its last pass; empty before the first."""
        with contextlib.suppress(FileNotFoundError):
            found: dict[str, Any] = json.loads((self.slurm_harness.state / "status.json").read_text())
            return found
        return {}

    def problem(self, of: str) -> bool:
        """Whether a part failed in the daemon's last pass: "slurm", "cloud"."""
        return any(str(one).startswith(f"{of}: ") for one in self.status.get("problems", ()))

    def messages_are_sent(self) -> None:
        """Wait until slurmctld has no message for a node.

        It tells a node that is down to end its job, and does not wait for an answer. Here a node boots within two
        seconds at the port that it had: on a busy machine the message comes to the new node, and ends the job that was
        begun again.
        """

        def sent() -> bool:
            found = dict(
                re.findall(r"^(Agent queue size|Agent count):\s+(\d+)$", self.slurm_harness.run("sdiag").stdout, re.M)
            )
            return set(found) == {"Agent queue size", "Agent count"} and set(found.values()) == {"0"}

        self.until("Slurm has sent its messages", sent)

    def passes(self, number: int = 2) -> None:
        """Wait for so many whole passes of the daemon that begin after now."""
        # The first end that is seen may be of a pass that had begun before.
        for _ in range(number + 1):
            last = self.status.get("looked_at")
            self.until("the daemon makes another pass", lambda last=last: self.status.get("looked_at") != last)  # type: ignore[misc]

    def ask_daemon(self, *words: str) -> str:
        """The output of a command of the autoscaler (status, explain, plan...)."""
        argv = [sys.executable, "-m", "gpucluster.autoscaler", words[0], *self.daemon_arguments, *words[1:]]
        env = {**os.environ, "PATH": f"{self.folder / 'bin'}:{os.environ['PATH']}", "PYTHONPATH": str(ROOT)}
        return process.run(argv, env=env, cwd=Path("/"), timeout=PATIENCE_S).stdout

    def events(self, event: str) -> list[dict[str, Any]]:
        """The daemon's log lines of one event."""
        return [line for line in self._lines() if str(line.get("event", "")).startswith(event)]

    def _lines(self) -> Iterator[dict[str, Any]]:
        for line in self.daemon_log.read_text().splitlines() if self.daemon_log.exists() else ():
            with contextlib.suppress(ValueError):
                found = json.loads(line)
                if isinstance(found, dict):
                    yield found

    # --- the cloud -----

    def faults(self, faults: Sequence[Mapping[str, Any]], pool: str = "") -> None:
        """Set the cloud's faults for one pool's nodes, or for no pool in particular; [] removes them. Others stay."""
        mine = {"display_name": f"{self.pools[pool].prefix}*"} if pool else {}
        self._faults[pool] = [{**mine, **fault} for fault in faults]
        # The other instances have no node in Slurm that could boot.
        dead = {"operation": "BootInstance", "display_name": "other-*", "dead": True}
        set_faults(self.home, [dead, *(fault for of in self._faults.values() for fault in of)])

    def instances(self, pool: str = "") -> dict[str, list[Any]]:
        """By node, the elastic instances of our cluster that cost money or are ending, from the API itself."""
        found: dict[str, list[Any]] = {}
        for one in self.all_instances():
            tags = one.freeform_tags
            ours = tags.get("gpucluster") == CLUSTER and "node" in tags and pool in ("", tags.get("pool"))
            if ours and one.lifecycle_state != "TERMINATED":
                found.setdefault(tags["node"], []).append(one)
        return found

    def all_instances(self) -> list[Any]:
        """Every instance that the cloud lists, terminated ones included."""
        import oci

        listing = self.api.compute.list_instances
        return list(oci.pagination.list_call_get_all_results(listing, self.api.tenancy, limit=1000).data)

    def calls(self, pool: str = "", operation: str = LAUNCH) -> Counter[str]:
        """The server's requests, by the code of the answer ("200", OCI's code, or "lost")."""
        asked = re.compile(rf"'(?P<path>\S+)' {operation} (?P<status>\d+) (?P<rest>.*)$")
        found: Counter[str] = Counter()
        for line in (self.home / "log" / "server.log").read_text().splitlines():
            match = asked.search(line)
            if match is None:
                continue
            if pool and not any(self._configurations[key] == pool for key in self._configurations if key in match[1]):
                continue
            word = match["rest"].split(" ")[0]
            found["lost" if "is not answered" in line else word or match["status"]] += 1
        return found

    def launch(self, node: str, *, generation: int = 1, tags: Mapping[str, str] | None = None) -> str:
        """Launch an instance without the daemon; returns its id."""
        given = {"gpucluster": CLUSTER, "pool": node.rpartition("-")[0], "node": node, "generation": str(generation)}
        details = self.api.launch_details(
            self.subnet, node, freeform_tags=given if tags is None else dict(tags), vnic={"hostname_label": None}
        )
        return str(self.api.compute.launch_instance(details).data.id)

    def terminate(self, instance_id: str) -> None:
        """Terminate an instance without the daemon."""
        self.api.compute.terminate_instance(instance_id)

    def _launch_others(self) -> None:
        """Launch foreign instances: another cluster's elastic node, and one without tags."""
        pool = next(iter(self.pools.values()))
        other = {"gpucluster": "other", "role": "compute", "pool": pool.name, "node": f"{pool.prefix}1"}
        for number, tags in enumerate((other, {})):
            self._others.append(self.launch(f"other-{number}", tags=tags))

    def others_untouched(self) -> None:
        """Check that every foreign instance runs as before."""
        states = {self.api.compute.get_instance(ocid).data.lifecycle_state for ocid in self._others}
        assert states == {"RUNNING"}, self.story()

    # --- Slurm -----

    def sbatch(self, pool: str, nodes: int = 1, *options: str, script: str = "true") -> str:
        """Submit a job for so many whole nodes of a pool's partition; returns its id."""
        queue = self.pools[pool].queue if pool in self.pools else pool
        return self.slurm_harness.sbatch(
            f"--partition={queue}", f"--nodes={nodes}", "--exclusive", *options, script=script
        )

    def gated(self, gate: str) -> str:
        """The script of a job that runs until `open` is called."""
        return self.slurm_harness.closed(f"job-{gate}")

    def open(self, gate: str) -> None:
        self.slurm_harness.open(f"job-{gate}")

    @contextlib.contextmanager
    def hold_boots(self, pool: str) -> Iterator[None]:
        """New instances of a pool run, and their slurmd does not start before the end of the block."""
        self.slurm_harness.closed(f"boot-{pool}")
        try:
            yield
        finally:
            self.slurm_harness.open(f"boot-{pool}")

    @contextlib.contextmanager
    def hold_ends(self, pool: str) -> Iterator[None]:
        """Instances of a pool that are terminated stay TERMINATING to the end of the block.

        At most half a minute: the engine waits no longer for a host to stop.
        """
        self.slurm_harness.closed(f"end-{pool}")
        try:
            yield
        finally:
            self.slurm_harness.open(f"end-{pool}")

    def state(self, job: str) -> str:
        return self.slurm_harness.job(job)["JobState"]

    def wait_state(self, job: str, *states: str) -> str:
        """Wait until a job is in one of these states; returns which."""
        self.until(f"job {job} is {' or '.join(states)}", lambda: self.state(job) in states)
        return self.state(job)

    def words(self, job: str) -> str:
        """The autoscaler's annotation on a job."""
        said = self.slurm_harness.run("squeue", "--noheader", f"--jobs={job}", "-O", "admin_comment:500").stdout.strip()
        return "" if said == "(null)" else said

    def why(self, job: str) -> str:
        """Slurm's reason for which a job waits."""
        return self.slurm_harness.run("squeue", "--noheader", f"--jobs={job}", "-o", "%r").stdout.strip()

    def nodes(self, job: str) -> list[str]:
        """The nodes of a job."""
        named = self.slurm_harness.job(job)["NodeList"]
        return self.slurm_harness.scontrol("show", "hostnames", named).split() if named != "(null)" else []

    def flags(self, pool: str) -> dict[str, set[str]]:
        """Of all nodes of a pool."""
        said = self.slurm_harness.scontrol("--oneliner", "show", "nodes").splitlines()
        facts = [dict(word.partition("=")[::2] for word in line.split() if "=" in word) for line in said]
        prefix = self.pools[pool].prefix
        return {one["NodeName"]: set(one["State"].split("+")) for one in facts if one["NodeName"].startswith(prefix)}

    # --- waiting -----

    def until(self, what: str, holds: Callable[[], object]) -> None:
        """`wait_for` a condition; all logs are in the message of a failure."""
        wait_for(what, holds, interval=0.2, state=self.story)

    def none_left(self, *pools: str) -> None:
        """Wait until a pool (all of them) has no instance and its names can be used again."""
        names = pools or tuple(self.pools)
        self.until(f"no instance of {names}", lambda: not any(self.instances(pool) for pool in names))
        rest = {"IDLE", "CLOUD", "POWERED_DOWN"}
        self.until(f"{names} are at rest", lambda: all(f == rest for pool in names for f in self.flags(pool).values()))

    def _cloud_log(self) -> str:
        lines = (self.home / "log" / "server.log").read_text().splitlines()
        return "\n".join(line for line in lines if " ListInstances 200" not in line and " GetInstance 200" not in line)

    def story(self, lines: int = 60) -> str:
        """The logs of all parts."""
        parts = [
            ("squeue", self.slurm_harness.run("squeue", "-o", "%i %P %T %D %N %r", check=False).stdout),
            ("words", self.slurm_harness.run("squeue", "-h", "-O", "JobID:8,admin_comment:400", check=False).stdout),
            ("sinfo", self.slurm_harness.run("sinfo", "-N", "-h", "-o", "%N %t %E", check=False).stdout),
            ("instances", "\n".join(f"{n} {[i.lifecycle_state for i in one]}" for n, one in self.instances().items())),
            ("daemon", self.daemon_log.read_text() if self.daemon_log.exists() else ""),
            ("cloud", self._cloud_log()),
            ("slurmctld", (self.slurm_harness.folder / "logs" / "slurmctld.log").read_text(errors="replace")),
        ]
        return "\n".join(f"== {name}\n" + "\n".join(text.rstrip().splitlines()[-lines:]) for name, text in parts)
