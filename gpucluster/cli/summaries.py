"""The text that commands end with: how a run ended, the next commands, and the status of a cluster."""

from __future__ import annotations

import os
import sys
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from gpucluster.cli.base import DEFAULT_FILES
from gpucluster.errors import PartlyDone
from gpucluster.text import count, printable

if TYPE_CHECKING:
    from gpucluster.cloud.clusters import CloudContents
    from gpucluster.cluster import Cluster
    from gpucluster.lifecycle.result import RunResult
    from gpucluster.operations.directory_records import Confirmation
    from gpucluster.terraform.plan import ResourceChange

T = TypeVar("T")

# What took less is shown as 0.0 s.
_SHOWN_SECONDS = 0.05


def names(listed: Sequence[str]) -> str:
    """Names in one cell of a table."""
    return ",".join(listed) or "-"


def with_partial_result(change: Callable[[], T], text: Callable[[T], str]) -> T:
    """Make a change. If a part of it failed, what was done is printed under the error."""
    try:
        return change()
    except PartlyDone as error:
        error.done_text = text(error.done)
        raise


def unconfirmed(confirmation: Confirmation) -> list[str]:
    """A line for the hosts that did not answer, and one for each where a change does not hold yet."""
    silent = ", ".join(map(printable, confirmation.unreachable))
    lines = [f"! no answer from {silent}: old groups, keys and processes may still be there"] if silent else []
    return lines + [
        f"! not confirmed by {printable(host)}: {printable(why)}" for host, why in confirmation.unconfirmed.items()
    ]


def summary(result: RunResult) -> str:
    """How a run ended, and how long its parts took."""
    from gpucluster.cli.output import seconds

    lines = [f"\n{result.command}: {result.status} in {seconds(result.elapsed)}"]
    lines += [f"  {name:<24}{seconds(took):>12}" for name, took in result.phases.items()]
    roles = sorted(result.roles.items(), key=lambda item: -item[1])
    lines += [f"    role {name:<17}{seconds(took):>12}" for name, took in roles if took >= _SHOWN_SECONDS]
    if result.resources:
        total = ", ".join(f"{number} {_DONE.get(action, action)}" for action, number in result.resources.items())
        lines.append(f"  resources: {total}")
    if result.changed:
        lines.append("  changed tasks: " + ", ".join(f"{host} {number}" for host, number in result.changed.items()))
    lines += [f"  {line}" for line in result.repair.lines()] if result.repair else []
    if result.verdict:
        lines += [f"hosts: {result.verdict.hosts_text}", f"evidence: {result.verdict.evidence}"]
    return "\n".join(lines)


def next_steps(cluster: Cluster, result: RunResult) -> str:
    """The commands to type after an apply."""
    spec = cluster.spec
    program = program_of(cluster)
    if not result.login:
        return f"\n\nLog in as the administrator:\n  {program} ssh"
    name, command = next(iter(result.login.items()))
    nodes = min(2, max((pool.max_count for pool in spec.pools.values()), default=0))
    lines = ["", "", f"Log in as {name}:", f"  {command}"]
    if spec.scheduler == "kubernetes":
        lines += [
            "Look at the nodes of Kubernetes:", f"  {program} kubectl -- get nodes",
            f"Make access for {name}:", f"  {program} kubeconfig --user {name} {name}.kubeconfig",
        ]  # fmt: skip
    elif nodes and spec.slurm.enabled:
        only_elastic = not any(pool.count for pool in spec.pools.values())
        lines += [
            "Submit a job there, and its nodes are launched:" if only_elastic else "Submit a job there:",
            f"  srun -N {nodes} hostname",
            f"  sbatch -N {nodes} --wrap 'srun hostname'",
        ]
    lines += ["Log in as the administrator:", f"  {program} ssh", "Remove the cluster:", f"  {program} destroy"]
    return "\n".join(lines)


#: The sign of each action, as Terraform has them.
SIGNS = {"create": "+", "update": "~", "delete": "-", "replace": "±", "import": "="}


_DONE = {"create": "created", "update": "changed", "replace": "replaced", "delete": "deleted", "import": "adopted"}


def change_sum(changes: Sequence[ResourceChange]) -> str:
    """How many changes there are of each action: "17 to create, 1 to delete"."""
    counted = Counter(change.action for change in changes)
    return ", ".join(f"{counted[action]} to {action}" for action in sorted(counted, key=list(SIGNS).index))


def changes_text(changes: Sequence[ResourceChange]) -> str:
    """Changes of resources, each with its values."""
    return "\n".join(printable(line) for change in changes for line in _change_lines(change))


def _change_lines(change: ResourceChange) -> list[str]:
    """A change with its values, as Terraform shows them. What is created or deleted is only named."""
    from gpucluster.cli.value_diff import changed_lines
    from gpucluster.terraform.addresses import human_name
    from gpucluster.terraform.plan import UNKNOWN

    because = f"  ({change.reason.replace('_', ' ')})" if change.reason else ""
    lines = [f"  {SIGNS.get(change.action, change.action)} {human_name(change.address)}: {change.action}{because}"]
    lines.append(f"      {change.address}")
    if change.adopts:
        lines.append(f"      adopts {change.adopts}, which exists and is in no state")
    if change.action not in ("update", "replace"):
        return lines
    new = [
        name
        for name, values in change.values.items()
        if values in [(None, UNKNOWN), ([], UNKNOWN)] and name not in change.forced_by
    ]
    for name, (before, after) in change.values.items():
        if name in new:
            continue
        forced = "  # forces the replacement" if name in change.forced_by else ""
        first, *more = changed_lines(name, before, after) or (f"{name}: changes",)
        lines += [f"      {first}{forced}", *(f"      {line}" for line in more)]
    if new:
        lines.append(f"      {count(len(new), 'attribute')} without a value until now: {UNKNOWN}")
    return lines


def program_of(cluster: Cluster) -> str:
    """The command line that calls us again, in this folder, for this cluster."""
    import shlex
    import shutil
    from pathlib import Path

    beside = Path(sys.executable).with_name("gpucluster")
    name = "gpucluster" if shutil.which("gpucluster") else os.path.relpath(beside)
    file = os.path.relpath(cluster.spec.file)
    default_file = next((default for default in DEFAULT_FILES if os.path.exists(default)), None)
    return name if file == default_file else f"{name} --file {shlex.quote(file)}"


def place(cluster: Cluster) -> str:
    """Where a cluster is, readable: the compartment, the region and the profile; or which local cloud."""
    cloud = cluster.spec.cloud
    if not cloud.traits.uses_profile:
        from gpucluster.paths import local_cloud_home

        return f"the local cloud of this machine ({local_cloud_home()})"
    who = f"profile {cloud.profile}" if cloud.auth == "profile" else cloud.auth.replace("_", " ")
    return f"the compartment {cloud.compartment_id} ({cloud.region}, {who})"


def instances_text(contents: CloudContents) -> str:
    """How many instances there are, in which states."""
    return ", ".join(f"{number} {state.lower()}" for state, number in contents.instances.items()) or "none"


def destruction(cluster: Cluster, contents: CloudContents, *, delete_data: bool) -> str:
    """What a destroy would remove: which cluster, where it is, and how much there is of it."""
    file_systems = count(contents.file_systems, "file system")
    lines = [
        f"This removes the cluster {contents.name} of {os.path.relpath(cluster.spec.file)}",
        f"  from          {place(cluster)}",
        f"  instances     {instances_text(contents)}",
        f"  file systems  {contents.file_systems}",
        f"  networks      {contents.networks}",
    ]
    if delete_data and contents.file_systems:
        lines.append(f"and, because of --delete-data, all files of users in {file_systems}.")
    return "\n".join(lines)


def status_text(status: Mapping[str, Any]) -> str:
    """A `ClusterStatus` as JSON object, as text."""
    from gpucluster.cli.output import table
    from gpucluster.operations.status import RECOVER

    parts = [f"cluster {status['name']}: {status['state']}{_resources_text(status['resources'])}"]
    notes = [f"! {printable(text)}" for text in status["pending"]]
    if status["pending"] and not status["running"] and not any(text.endswith(RECOVER) for text in status["pending"]):
        notes.append("  Continue with the command that was not completed, such as: gpucluster apply")
    parts.append("\n".join(notes))
    if status["hosts"]:
        rows = [[host["name"], host["address"] or "-", host["instance"] or "?"] for host in status["hosts"]]
        parts.append(table(rows, ["HOST", "ADDRESS", "INSTANCE"]))
    if status["service"]:
        parts.append(_service_text(status["service"]))
    # Slurm lists a name for each possible elastic node. Those without an instance ("~") are left out.
    rows = [[row["node"], row["state"], row["partition"]] for row in status["slurm"] if not row["state"].endswith("~")]
    if rows:
        parts.append(table(rows, ["NODE", "STATE", "PARTITION"]))
    rows = [[row["node"], row["state"], row["pool"] or "-", row["version"]] for row in status["kubernetes"]]
    if rows:
        parts.append(table(rows, ["NODE", "STATE", "POOL", "VERSION"]))
    if status["certificates"]:
        parts.append(_certificates_text(status["certificates"]))
    if status["maintenance"]:
        parts.append(_maintenance_text(status["maintenance"]))
    if status["autoscaler"]:
        parts.append(_autoscaler_text(status["autoscaler"]))
    parts.append(_sources_text(status["sources"]))
    parts.append("\n".join(_runs_text(status)))
    return "\n\n".join(filter(None, parts))


def _maintenance_text(content: dict[str, Any]) -> str:
    """A line for each window of a maintenance, and what an administrator should know."""
    from gpucluster.controller.maintenance.control import text_lines

    return "\n".join(f"! {printable(line)}" for line in text_lines(content))


def _certificates_text(certificates: dict[str, Any]) -> str:
    """When the control plane's certificates end: the first one, or those that end soon."""

    def ends(each: dict[str, Any]) -> str:
        return f"{printable(each['file'])} ends in {each['days']} days ({printable(each['expires'])})"

    ending = certificates["ending"]
    if not ending:
        return f"certificates of the control plane: the first, {ends(certificates['first'])}"
    renew = [*filter(lambda each: not each["authority"], ending)]
    hint = "gpucluster kubernetes certificates --renew" if renew else "gpucluster kubernetes status"
    return "\n".join([*(f"! {ends(each)}" for each in ending), f"  Run: {hint}"])


def _resources_text(resources: dict[str, int] | None) -> str:
    """What the cloud has: the instances, and everything else in one number."""
    from gpucluster.text import count

    if not resources:
        return ""
    others = sum(resources.values()) - resources.get("instance", 0)
    return f", {count(resources.get('instance', 0), 'instance')} and {count(others, 'other resource')} in the cloud"


def _sources_text(sources: dict[str, Any]) -> str:
    """Which sources have answered, and as of when."""
    from gpucluster.operations.status import SOURCES

    answered = {name: source["time"] for name, source in sources.items() if not source["error"]}
    now = max(answered.values(), default="")
    by_time: dict[str, list[str]] = {}
    for name, time in answered.items():
        # What was asked just now has one time; only what was saved earlier has another.
        by_time.setdefault(time if name == "hosts" else now, []).append(SOURCES[name])
    silent: dict[str, list[str]] = {}
    for name, source in sources.items():
        if source["error"] and name != "autoscaler":  # that has a line of its own
            silent.setdefault(source["error"], []).append(SOURCES[name])
    lines = [f"! {', '.join(names)}: {printable(error)}" for error, names in silent.items()]
    lines += [f"as of {clock(time)}: {', '.join(names)}" for time, names in by_time.items()]
    return "\n".join(lines)


def _service_text(service: dict[str, Any]) -> str:
    """Which of the two instances is the controller; names are those in the cloud."""
    state = "up to date" if service["current"] else "not up to date"
    return f"in service: {printable(service['in_service'])}; standby: {printable(service['standby'])} ({state})"


def _runs_text(status: Mapping[str, Any]) -> list[str]:
    """The run that holds the cluster, the last change, and the last run if that is another one."""
    lines = []
    running, change, last = status["running"], status["last_change"], status["last_run"]
    if running is not None:
        by = f"gpucluster {running['command']}, pid {running['pid']} on {running['host']}" if running else "a run"
        lines.append(f"running now: {by}")
    if change:
        lines.append(f"last change: {_run_text(change)}")
    if last and last["run"] != (change or {}).get("run"):
        lines.append(f"last run: {_run_text(last)}")
    return lines


def _run_text(run: dict[str, Any]) -> str:
    phase = f" in the phase {run['phase']}" if run["status"] != "success" and run.get("phase") else ""
    return f"{run['command']} {run['status']}{phase}, started {clock(run['started'])}"


def clock(time: str) -> str:
    """A time in UTC, readable: `2026-11-22 12:47:38 UTC`."""
    return f"{time[:19].replace('T', ' ')} UTC"


def _budget_text(budget: dict[str, Any]) -> str:
    """What an account has spent of its budget of this month."""
    spent = "an unknown sum" if budget["spent"] is None else f"{budget['spent']:.2f}"
    words = f"budget of account {printable(str(budget['account']))}: {spent} of {budget['budget']:.2f} "
    words += f"{budget['currency']} spent this month"
    return f"! {words}: its jobs get no new nodes" if budget["held"] else words


def _autoscaler_text(status: dict[str, Any]) -> str:
    """The elastic nodes of each pool, and the problems."""
    if "error" in status:
        return f"! {printable(status['error'])}"
    lines = []
    for name, pool in status.get("pools", {}).items():
        states = ", ".join(f"{number} {state.lower()}" for state, number in pool["instances"].items()) or "none"
        baked = "from a baked image" if pool["baked"] else "configured after they boot"
        rest = f"; no launches until {pool['cool_down']['until']}" if pool.get("cool_down") else ""
        lines.append(f"elastic nodes of pool {name}: {states}, at most {pool['max_nodes']}, {baked}{rest}")
        if pool.get("boot_failure"):
            lines.append(f"! a new node did not come into service: {printable(str(pool['boot_failure']))}")
    lines += [f"! {printable(problem)}" for problem in status.get("problems", ())]
    lines += [_budget_text(budget) for budget in status.get("budgets", ())]
    if status.get("paused"):
        lines.append(f"! the autoscaler is paused: {printable(str(status['paused']))}")
    return "\n".join(lines)
