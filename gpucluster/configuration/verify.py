"""The checks at the end of a run: from the facts of every host to results. Pure.

A check that could not run is not a pass: its status is `not_run`, and the cluster does not pass. A check of hardware
that is only emulated is a `skip`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from typing import Any

from gpucluster.oci.names import elastic_prefix, number_of
from gpucluster.slurm.states import SINFO_BUSY, SINFO_HEALTHY, SINFO_RESUMABLE
from gpucluster.text import count


class CheckStatus(StrEnum):
    """How a check ended. The values are those of the JSON output."""

    PASS = "pass"  # noqa: S105 - not a password
    FAIL = "fail"
    NOT_RUN = "not_run"
    SKIP = "skip"


PASS, FAIL, NOT_RUN, SKIP = CheckStatus

Facts = Mapping[str, Mapping[str, Any]]


@dataclass(frozen=True)
class Check:
    """One check: what was checked, how it ended, and why."""

    name: str
    status: CheckStatus
    message: str

    def to_dict(self) -> dict[str, str]:
        """As a JSON object."""
        return asdict(self)


@dataclass(frozen=True)
class Expectation:
    """The expected state of a cluster.

    Args:
        hosts: every host, the controller first.
        pools: the permanent nodes of each pool.
        people: the users that every host must know, with the number of their primary group.
        home_mount_path: None if there is no shared home. Then there is no directory (LDAP) either.
        scheduler: whether there is Slurm. Without it, nodes must reach each other by ssh.
        containers: whether Slurm's steps may run in containers.
        autoscaler: whether a pool is elastic; then the autoscaler must run.
        partitions: by pool, its partition if that has another name.
        local_drives: by host, how many of its own drives must be in one file system. Hosts without drives are left out.
        rdma_addressed: the hosts whose RDMA interfaces get addresses from user data.
        hardware_emulated: hosts have less than their shape says. What none of them has is not checked.
        login: the login nodes. With them, only operators log in to the controller.
        operators: the group whose members are operators.
    """

    hosts: Sequence[str]
    pools: Mapping[str, Sequence[str]]
    people: Mapping[str, int]
    home_mount_path: str | None
    accounting: bool
    scheduler: bool = True
    containers: bool = False
    autoscaler: bool = False
    partitions: Mapping[str, str] = field(default_factory=dict)
    local_drives: Mapping[str, int] = field(default_factory=dict)
    rdma_addressed: Sequence[str] = ()
    hardware_emulated: bool = False
    login: Sequence[str] = ()
    operators: str = ""

    @property
    def controller(self) -> str:
        """The controller's host name."""
        return self.hosts[0]


def evaluate(expected: Expectation, facts: Facts) -> tuple[Check, ...]:
    """Compare the facts with what is expected.

    Args:
        facts: by host name, what `verify.yml` collected.
    """
    checks = [_answers(expected, facts)]
    checks += [_home(expected, facts)] if expected.home_mount_path else []
    checks += [_users(expected, facts), _cloud_services(expected, facts), _firewall(expected, facts)]
    if expected.login:
        checks += _login(expected, facts)
    if expected.local_drives:
        checks.append(_local_disks(expected, facts))
    if expected.rdma_addressed:
        checks.append(_rdma_addresses(expected, facts))
    checks += (
        _scheduled(expected, facts.get(expected.controller, {})) if expected.scheduler else [_mesh(expected, facts)]
    )
    return tuple(checks)


# What srun writes before it starts a step.
_ALLOCATED = "has been allocated resources"


def _scheduled(expected: Expectation, controller: Mapping[str, Any]) -> list[Check]:
    """The checks of Slurm, by facts from its controller."""
    partition = {pool: expected.partitions.get(pool, pool) for pool in expected.pools}
    checks = [_idle(pool, partition[pool], nodes, controller) for pool, nodes in expected.pools.items()]
    checks += [_job(pool, nodes, expected, controller) for pool, nodes in expected.pools.items() if nodes]
    if expected.containers:
        checks += [_container_steps(pool, nodes, expected, controller) for pool, nodes in expected.pools.items()]
    if expected.accounting:
        checks.append(_accounting(controller))
    if expected.autoscaler:
        checks.append(_autoscaler(controller))
    return checks


def passed(checks: Sequence[Check]) -> bool:
    """Whether every check that was not skipped passed. Without any that passed, the cluster does not pass."""
    return any(check.status == PASS for check in checks) and not problems(checks)


def problems(checks: Sequence[Check]) -> tuple[Check, ...]:
    """The checks that did not pass and were not skipped."""
    return tuple(check for check in checks if check.status not in (PASS, SKIP))


def _result(name: str, failures: Sequence[str], good: str) -> Check:
    return Check(name, FAIL, "; ".join(failures)) if failures else Check(name, PASS, good)


def _answers(expected: Expectation, facts: Facts) -> Check:
    missing = [host for host in expected.hosts if host not in facts]
    wrong = [
        f"{host} has the host name {facts[host].get('hostname')}"
        for host in expected.hosts
        if host in facts and facts[host].get("hostname") != host
    ]
    failures = [*([f"no answer from {', '.join(missing)}"] if missing else []), *wrong]
    return _result("hosts answer", failures, f"{len(expected.hosts)} of {len(expected.hosts)}")


def _home(expected: Expectation, facts: Facts) -> Check:
    name = f"{expected.home_mount_path} is one file system"
    failures = []
    for host in expected.hosts:
        reported = facts.get(host)
        if reported is None:
            failures.append(f"{host}: no facts")
        elif not (reported.get("home_fs") or {}).get("mounted"):
            failures.append(f"{host}: not mounted")
        elif not reported.get("home_token_seen"):
            failures.append(f"{host}: does not have the file that the controller wrote")
    return _result(name, failures, f"on {count(len(expected.hosts), 'host')}")


def _users(expected: Expectation, facts: Facts) -> Check:
    name = "directory users resolve" if expected.home_mount_path else "users have accounts"
    if not expected.people:
        return Check(name, PASS, "there are no users yet")
    failures = []
    seen: dict[str, set[str]] = {}
    for host in expected.hosts:
        ids = facts.get(host, {}).get("user_ids") or {}
        for person in expected.people:
            if not ids.get(person):
                failures.append(f"{host} does not know {person}")
            else:
                seen.setdefault(person, set()).add(ids[person])
    failures += [
        f"{person} has different ids: {', '.join(sorted(ids))}" for person, ids in seen.items() if len(ids) > 1
    ]
    failures += [
        f"{person} is in group {ids_text.partition(':')[2]}, not {expected.people[person]}"
        for person, ids in seen.items()
        for ids_text in ids
        if ids_text.partition(":")[2] != str(expected.people[person])
    ]
    return _result(name, failures, f"{', '.join(expected.people)} on {count(len(expected.hosts), 'host')}")


def _login(expected: Expectation, facts: Facts) -> Iterator[Check]:
    """Login nodes can submit jobs, and the controller lets no other users in than operators."""
    if expected.scheduler:
        errors = {host: facts.get(host, {}).get("slurm_error", "no facts") for host in expected.login}
        failures = [f"{host}: {error}" for host, error in errors.items() if error]
        yield _result("login nodes reach Slurm", failures, ", ".join(expected.login))
    name, controller = "only operators log in to the controller", facts.get(expected.controller, {})
    admitted = controller.get("ssh_groups")
    if admitted is None:
        yield Check(name, NOT_RUN, "its ssh server does not say whom it lets in")
        return
    groups = controller.get("user_groups") or {}
    users = [person for person in expected.people if expected.operators not in groups.get(person, ())]
    failures = [
        f"its ssh server lets {person} in"
        for person in users
        if not admitted or set(admitted) & set(groups.get(person, ()))
    ]
    yield _result(name, failures, f"of {count(len(expected.people), 'user')}, {len(expected.people) - len(users)}")


def _cloud_services(expected: Expectation, facts: Facts) -> Check:
    """Who reaches the metadata service has the instance's identity; who reaches the boot volume has what is on it."""
    name = "users reach no service of the cloud's own"
    told = {host: facts.get(host, {}).get("cloud_services") for host in expected.hosts}
    untried = [host for host, services in told.items() if services is None]
    if untried:
        return Check(name, NOT_RUN, f"not tried on {', '.join(untried)}")
    open_to_all = {host: services["nobody"] for host, services in told.items() if services and services["nobody"]}
    failures = [f"{host}: any user reaches the {' and the '.join(reached)}" for host, reached in open_to_all.items()]
    if failures:
        failures.append("run: gpucluster apply, or on the host: sudo gpucluster-metadata")
    silent = [host for host, services in told.items() if services and not services["root"]]
    good = f"neither metadata nor boot volume, on {count(len(expected.hosts), 'host')}"
    return _result(name, failures, good + (f"; root does not reach the first on {', '.join(silent)}" if silent else ""))


def _mesh(expected: Expectation, facts: Facts) -> Check:
    """Each node reaches the next one, and the last one the first. So a user can reach all nodes from any of them."""
    name = "nodes reach each other by ssh"
    nodes = [node for pool in expected.pools.values() for node in pool]
    if not expected.people:
        return Check(name, SKIP, "there is no user who could log in")
    failures = []
    for node in nodes:
        mesh = facts.get(node, {}).get("mesh") or {}
        if mesh.get("reached") != mesh.get("next") or not mesh.get("next"):
            failures.append(f"{node} to {mesh.get('next', 'the next')}: {mesh.get('error') or 'not tried'}")
    return _result(name, failures, f"{count(len(nodes), 'node')}, as {next(iter(expected.people))}")


def _local_disks(expected: Expectation, facts: Facts) -> Check:
    name = "each node's own drives are one file system"
    reported = {host: facts.get(host, {}).get("local_disk") or {} for host in expected.local_drives}
    if expected.hardware_emulated and _absent(reported):
        return Check(name, SKIP, "the hardware is emulated: no node has a drive of its own")
    failures = [
        f"{host}: {problem}"
        for host, drives in expected.local_drives.items()
        if (problem := _disk_problem(reported[host], drives))
    ]
    return _result(name, failures, f"xfs on {count(len(expected.local_drives), 'node')}")


def _disk_problem(disk: Mapping[str, Any], drives: int) -> str:
    if not disk:
        return "nothing is known about its drives: its user data did not run, or is of an earlier version"
    if not disk.get("mounted"):
        return str(disk.get("words") or f"nothing is mounted at {disk.get('path')}")
    if disk.get("fstype") != "xfs":
        return f"{disk.get('fstype')} is mounted at {disk.get('path')}"
    return f"{disk.get('drives')} of {drives} drives" if disk.get("drives", 0) < drives else ""


def _rdma_addresses(expected: Expectation, facts: Facts) -> Check:
    name = "RDMA interfaces have addresses"
    reported = {host: facts.get(host, {}).get("rdma_addresses") or {} for host in expected.rdma_addressed}
    if expected.hardware_emulated and _absent(reported):
        return Check(name, SKIP, "the hardware is emulated: no node has an RDMA interface")
    failures = [
        f"{host}: {interfaces.get('words') or 'its user data did not run'}"
        for host, interfaces in reported.items()
        if interfaces.get("state") != "addressed"
    ]
    return _result(name, failures, f"on {count(len(reported), 'node')}")


def _firewall(expected: Expectation, facts: Facts) -> Check:
    """The firewall of each image is open to the cluster's own networks, by what `gpucluster-firewall` wrote at boot."""
    name = "firewalls are open to the cluster's hosts"
    reported = {host: facts[host]["firewall"] for host in expected.hosts if "firewall" in facts.get(host, {})}
    if not reported:
        return Check(name, NOT_RUN, "no host has reported it")
    failures = [
        f"{host}: {found['words'] or 'gpucluster-firewall has not run; see `journalctl -u gpucluster-firewall` there'}"
        for host, found in reported.items()
        if found["state"] != "open"
    ]
    return _result(name, failures, f"on {count(len(reported), 'host')}")


def _absent(reported: Mapping[str, Mapping[str, Any]]) -> bool:
    """Whether every host reports that it does not have the hardware."""
    return all(states.get("state") == "absent" for states in reported.values())


def _idle(pool: str, partition: str, nodes: Sequence[str], controller: Mapping[str, Any]) -> Check:
    name = f"pool {pool} is ready in Slurm"
    if not nodes:
        return Check(name, PASS, "its nodes are launched when jobs need them")
    listed = controller.get("sinfo")
    if listed is None:
        return Check(name, NOT_RUN, "sinfo gave no answer")
    rows = {row["node"]: row for row in listed if row.get("partition", "").rstrip("*") == partition}
    closed = [node for node in nodes if node not in rows or rows[node]["state"] not in SINFO_HEALTHY]
    failures = [_state_of(node, rows.get(node)) for node in closed]
    return _result(name, [*failures, *_to_resume(closed, rows)], f"{len(nodes)} of {len(nodes)} nodes")


def _state_of(node: str, row: Mapping[str, Any] | None) -> str:
    if row is None:
        return f"{node} is unknown to Slurm"
    return f"{node} is {row['state']}" + (f" ({row['reason']})" if row.get("reason") else "")


def _to_resume(nodes: Sequence[str], rows: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """The command for the nodes that are drained, or that a health check or an administrator set down."""
    waiting = [node for node in nodes if rows.get(node, {}).get("state") in SINFO_RESUMABLE]
    command = f"gpucluster ssh -- sudo scontrol update nodename={','.join(waiting)} state=resume"
    return [f"when the reason is gone, run: {command}"] if waiting else []


def _job(pool: str, nodes: Sequence[str], expected: Expectation, controller: Mapping[str, Any]) -> Check:
    """A job on two nodes, or on the only one, started by srun as users do: with the cluster's own `MpiDefault`."""
    wanted = min(2, len(nodes))
    name = f"{'a two-node job' if wanted > 1 else 'a job'} runs in pool {pool}"
    runs: Sequence[Mapping[str, Any]] = controller.get("srun") or ()
    run = next((run for run in runs if run.get("partition") == pool), {})
    if not run.get("ran"):
        states = [row["state"] for row in controller.get("sinfo") or () if row["node"] in nodes]
        if wanted == 1 and states and states[0] in SINFO_BUSY:
            return Check(name, SKIP, f"{nodes[0]} runs other jobs")
        if wanted == 1 and not expected.people:
            return Check(name, SKIP, "there is no user who could run one")
        if _ALLOCATED in run.get("error", ""):
            # As where slurmd does not have the MPI plugin that srun has chosen; srun says nothing of it.
            log = "see /var/log/slurm/slurmd.log on the pool's nodes"
            return Check(name, FAIL, f"nodes were allocated, and srun's step did not begin in time: {log}")
        return Check(name, NOT_RUN, run.get("error") or "no job was tried")
    found = sorted(set(run.get("nodes") or ()))
    if run.get("error") or len(found) != wanted:
        return Check(name, FAIL, run.get("error") or f"it ran on {', '.join(found) or 'no node'}")
    return Check(name, PASS, f"on {' and '.join(found)} as {run.get('user')}")


def _container_steps(pool: str, nodes: Sequence[str], expected: Expectation, controller: Mapping[str, Any]) -> Check:
    """Every free node, elastic nodes included, has run a step and seen the marker in the container.

    Args:
        nodes: the pool's permanent nodes.
    """
    name = f"container steps run in pool {pool}"
    states = {row["node"]: row["state"] for row in controller.get("sinfo") or ()}
    elastic = [
        node for node, state in states.items() if state in SINFO_HEALTHY and number_of(elastic_prefix(pool), node)
    ]
    if not nodes and not elastic:
        return Check(name, SKIP, "its nodes are launched when jobs need them")
    if not expected.people:
        return Check(name, SKIP, "there is no user who could run one")
    if "container_steps" not in controller:
        return Check(name, NOT_RUN, "none was tried")
    steps: dict[str, Any] = next((tried for tried in controller["container_steps"] if tried["pool"] == pool), {})
    seen: Sequence[str] = steps.get("seen", ())
    missed: Mapping[str, str] = steps.get("missed", {})
    if missed and all("Exec format error" in error for error in missed.values()):
        return Check(
            name,
            SKIP,
            "its nodes have another architecture than the controller, whose shell would run in the container",
        )
    if missed:
        closed = {row["node"]: row for row in steps.get("closed", ())}
        failures = [f"{node}: {error}" for node, error in missed.items()]
        failures += [_state_of(node, row) for node, row in closed.items()]
        if set(missed) - set(elastic):
            failures.append("to install what is missing, run: gpucluster apply")
            failures += _to_resume([node for node in missed if node not in elastic], closed)
        if replaced := ",".join(node for node in missed if node in elastic):
            failures.append(f"to replace elastic nodes, run: scontrol update nodename={replaced} state=power_down_asap")
        return Check(name, FAIL, "; ".join(failures))
    every = [*nodes, *elastic]
    untried = [f"{node} ({states.get(node, 'unknown')})" for node in every if node not in seen]
    tried = f"on {len(seen)} of {len(every)} nodes" if seen else "no node is free"
    message = f"{tried}; not tried: {', '.join(untried)}" if untried else tried
    # It is no problem if all nodes of an elastic pool run jobs. A permanent node must have been checked once.
    return Check(name, PASS if seen else NOT_RUN if nodes else SKIP, message)


def _accounting(controller: Mapping[str, Any]) -> Check:
    name = "accounting answers"
    if "accounting" not in controller:
        return Check(name, NOT_RUN, "sacctmgr was not asked")
    return _result(name, [] if controller["accounting"] else ["slurmdbd does not know the cluster"], "slurmdbd")


def _autoscaler(controller: Mapping[str, Any]) -> Check:
    name = "the autoscaler is healthy"
    status = controller.get("autoscaler")
    if not isinstance(status, Mapping):
        return Check(name, NOT_RUN, "it was not asked")
    if status.get("healthy") is not True:
        failures = [str(problem) for problem in status.get("problems") or ()]
        return Check(name, FAIL, "; ".join(failures) or str(status.get("error") or "it does not say why"))
    paused = status.get("paused")
    return Check(name, PASS, f"paused: {paused}" if paused else f"pools {', '.join(status.get('pools') or ())}")
