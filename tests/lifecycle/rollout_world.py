"""A cluster of which only the interfaces exist that a rollout uses: a double of Terraform's state, the cloud's
instances, Slurm and the hosts, in which a run can be killed at any call.

It does not prove how these behave: tests/localcloud and tests/e2e do. It keeps what must hold in a real one, and raises
AssertionError where a rollout would break it: a job on a node that gets another disk, a plan of Terraform that would
change a node, a configuration of hosts of which one does not answer.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

from gpucluster.cloud.boot_volumes import BootedFrom, NewVolume
from gpucluster.errors import AnsibleError, CloudError, ToolError
from gpucluster.handover import ROLLOUTS, rollouts
from gpucluster.lifecycle.rollout import RolloutRequest, Rollouts
from gpucluster.operations.drain import SlurmJob, SlurmNode
from gpucluster.rollout.record import RolloutRecord
from gpucluster.spec import ClusterSpec

OLD, NEW, THIRD = (f"ocid1.image..{name}" for name in ("old", "new", "third"))


class Killed(BaseException):
    """kill -9, as far as a test can have it: no handler of errors sees it."""


@dataclass
class WorldNode:
    """A node. `job` is the time that its job has left, in looks at Slurm; `reason` is why it is drained."""

    name: str
    image: str = OLD
    reason: str = ""
    job: int = 0
    configured: bool = True
    reserved: bool = False
    lives: int = 1

    @property
    def id(self) -> str:
        return f"ocid1.instance..{self.name}.{self.lives}"


@dataclass
class World:
    """The cluster.

    Args:
        desired: the image that cluster.yml asks for.
        bad: what is wrong with an image on a node: "silent": it does not come back; "task": Ansible fails; else what
            its checks find.
        refuses: the cloud's answer to a request for another boot volume; empty if it does it.
        kill: whether the run is killed at this call.
        required: how many nodes must serve at any time.
    """

    spec: ClusterSpec
    nodes: dict[str, WorldNode]
    desired: str = NEW
    bad: Callable[[str, str], str] = lambda _node, _image: ""
    refuses: str = ""
    gone: set[str] = field(default_factory=set)
    kill: Callable[[], bool] = lambda: False
    chance: random.Random = field(default_factory=lambda: random.Random(1))
    new_jobs: float = 0.0
    required: int = 0
    now: float = 0.0
    outputs: dict[str, Any] = field(default_factory=dict)
    selected: str = OLD
    said: list[str] = field(default_factory=list)
    replaced: list[str] = field(default_factory=list)
    builds: int = 0

    def tick(self) -> None:
        """An effect begins: the run may be killed before it."""
        if self.kill():
            raise Killed

    def rollouts(self) -> Rollouts:
        """A run's own: nothing but the world is left of an earlier one."""
        draining = SimpleNamespace(
            nodes=self.nodes_now, begin=self.begin, drain=self.drain, release=self.release, jobs=self.jobs
        )
        parts: dict[str, Any] = {"provisioning": self, "building": self, "verification": self, "hosts": self}
        return Rollouts(
            spec=self.spec,
            draining=draining,  # type: ignore[arg-type]
            record=SimpleNamespace(reopen=self.tick),  # type: ignore[arg-type]
            boot_volumes=lambda: self,  # type: ignore[arg-type, return-value]
            pool_members=lambda: None,  # type: ignore[arg-type, return-value]
            on_event=lambda event: self.said.append(f"{event.name}: {event.message}"),
            **parts,
        )

    def roll(self, request: RolloutRequest | None = None) -> Any:
        """One run of the command."""
        run = SimpleNamespace(phase=self._phase)
        terraform = SimpleNamespace(outputs=self.terraform_outputs)
        return self.rollouts().roll(run, terraform, request or RolloutRequest())  # type: ignore[arg-type]

    @contextmanager
    def _phase(self, _name: str) -> Iterator[None]:
        yield

    @property
    def record(self) -> RolloutRecord | None:
        return rollouts(self.outputs).get("cpu")

    @property
    def images(self) -> set[str]:
        return {node.image for node in self.nodes.values()}

    # --- Terraform's state

    def terraform_outputs(self) -> dict[str, Any]:
        host = {"id": "ocid1.instance..controller", "name": "demo-controller", "private_ip": "10.0.0.2"}
        instances = [{"id": node.id, "name": node.name, "private_ip": "10.0.1.2"} for node in self.nodes.values()]
        pool = {
            "availability_domain": "ad", "kind": "instances", "shape": "VM", "image_id": self.selected,
            "baked_image_id": None, "instance_configuration_id": None, "compute_cluster_id": None,
            "cluster_network_id": None, "instances": instances,
        }  # fmt: skip
        cluster = {
            "contract_version": 1, "name": "demo", "region": "r", "compartment_id": "c", "availability_domain": "ad",
            "controller": host, "pools": {"cpu": pool},
            "home": {"file_system_id": "", "mount_target_ip": "", "export_path": ""},
        }  # fmt: skip
        return {"cluster": cluster, **self.outputs}

    def note_rollouts(self, _terraform: Any, records: Mapping[str, RolloutRecord]) -> None:
        self.tick()
        self.outputs[ROLLOUTS] = {pool: record.to_json() for pool, record in records.items()}

    def forget_disks(self, _terraform: Any, _instances: Collection[str]) -> None:
        self.tick()

    # --- Building

    def build(self, _terraform: Any, _run: Any, consent: Any) -> Any:
        self.tick()
        self.builds += 1
        self.selected = self.desired
        held = self.record.images if self.record else {}
        for name, node in self.nodes.items():
            desired = held.get(name, self.selected)
            if name in consent.recreate:
                assert not node.job, f"{name} is terminated with a job"
                node.image, node.configured, node.lives = desired, False, node.lives + 1
            assert node.image == desired, f"Terraform would change {name} from {node.image} to {desired}"
        self.tick()
        assert not self._silent(), "the run waits for hosts that do not answer"
        broken = {name: "a task failed" for name in self.nodes if self._is(name, "task")}
        if broken:
            error = AnsibleError("site.yml failed")
            error.reasons = broken
            raise error
        for node in self.nodes.values():
            node.configured = True
        self.tick()
        return SimpleNamespace(deployment=self._deployment(), facts=None)

    def _deployment(self) -> Any:
        hosts = [SimpleNamespace(name=node.name, instance_id=node.id) for node in self.nodes.values()]
        pools = {"cpu": SimpleNamespace(image_id=self.selected, launched_together_id=None, instances=self._members())}
        return SimpleNamespace(hosts=hosts, outputs=SimpleNamespace(pools=pools))

    def _members(self) -> Any:
        return [SimpleNamespace(id=node.id, name=node.name) for node in self.nodes.values()]

    def _is(self, name: str, what: str) -> bool:
        return self.bad(name, self.nodes[name].image) == what

    def _silent(self) -> dict[str, str]:
        return {name: "no answer" for name in self.nodes if self._is(name, "silent")}

    # --- HostConnections

    def locate(self) -> Any:
        return self._deployment()

    def forget(self, **_: Any) -> None:
        self.tick()

    def come_back(self, _deployment: Any, nodes: Collection[str], _deadline: float) -> dict[str, str]:
        self.tick()
        return {name: why for name, why in self._silent().items() if name in nodes}

    # --- Verification

    def verdict(self, _deployment: Any, _run: Any, request: Any, _facts: Any) -> Any:
        self.tick()
        results = []
        for name in request.nodes.split(","):
            assert self.nodes[name].configured
            why = self.bad(name, self.nodes[name].image)
            status = "fail" if why else "pass"
            results.append(SimpleNamespace(subject=name, status=status, name="gpus", message=why))
        return SimpleNamespace(results=results)

    # --- BootVolumes

    def sources(self, instances: Any) -> dict[str, BootedFrom]:
        by_id = {node.id: node for node in self.nodes.values()}
        return {ocid: BootedFrom(by_id[ocid].image, "RUNNING") for ocid in instances}

    def check_image(self, image: str) -> str:
        if image in self.gone:
            raise CloudError(f"image {image} does not exist any more, or may not be used")
        return "Debian"

    def replace(self, instances: Mapping[str, str], image: str) -> dict[str, NewVolume]:
        ended = {}
        for ocid, name in instances.items():
            self.tick()
            node = self.nodes[name]
            assert not node.job, f"{name} gets another disk with a job"
            if self.refuses and node.image != image:
                ended[ocid] = NewVolume(refused=self.refuses)
                continue
            if node.image != image:
                self.replaced.append(name)
                node.image, node.configured = image, False
            ended[ocid] = NewVolume()
        return ended

    # --- Draining

    def nodes_now(self) -> dict[str, SlurmNode]:
        return {name: self._slurm(node) for name, node in self.nodes.items()}

    def _slurm(self, node: WorldNode) -> SlurmNode:
        answers = node.configured and not self._is(node.name, "silent")
        if node.reason:
            return SlurmNode("draining" if node.job else "drained", node.reason, answers)
        if not answers:
            return SlurmNode("down", "Not responding", answers)
        return SlurmNode("reserved" if node.reserved else "allocated" if node.job else "idle", "none", answers)

    def begin(self, reasons: Mapping[str, str]) -> None:
        self.tick()
        for name, reason in reasons.items():
            self.nodes[name].reason = self.nodes[name].reason or reason
        self._look()

    def drain(self, reasons: Mapping[str, str], timeout: float) -> None:
        self.begin(reasons)
        until = self.now + timeout
        for name in reasons:
            while timeout > 0 and self.nodes[name].job:
                if self.now > until:
                    raise ToolError(f"there is still a job on {name}")
                self.sleep(2.0)
            self.nodes[name].job = 0  # requeued, if there is one

    def release(self, names: Collection[str]) -> dict[str, str]:
        self.tick()
        for name in names:
            if self.nodes[name].reason.startswith("gpucluster: rollout"):
                self.nodes[name].reason = ""
        closed = self.nodes_now()
        return {name: closed[name].reason for name in names if not closed[name].takes_jobs}

    def jobs(self, names: Collection[str]) -> tuple[SlurmJob, ...]:
        return tuple(SlurmJob(str(7), "alice", "1:00", name) for name in names if self.nodes[name].job)

    def _look(self) -> None:
        serving = sum(node.takes_jobs and node.answers for node in self.nodes_now().values())
        assert serving >= self.required, f"{serving} nodes serve, and {self.required} must"

    def sleep(self, seconds: float) -> None:
        """Time passes: jobs end, and others begin."""
        self.tick()
        self.now += seconds
        for name, node in self.nodes_now().items():
            own = self.nodes[name]
            own.job = max(0, own.job - 1)
            if node.takes_jobs and node.answers and not own.job and self.chance.random() < self.new_jobs:
                own.job = self.chance.randint(1, 20)
        self._look()

    def monotonic(self) -> float:
        return self.now
