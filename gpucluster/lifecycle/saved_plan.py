"""A plan in a file, and whether it still holds: what has moved since it was made. Pure, but for reading and writing.

A saved plan is not Terraform's plan file: that one can't be applied after any change of the state, has secrets in it,
and knows nothing of hosts. `apply FILE` plans again, and goes on only if that leads to the same changes in the same
world.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gpucluster import formats
from gpucluster.errors import InputError, MovedError
from gpucluster.node_agent import bounded
from gpucluster.paths import write_private
from gpucluster.spec import updates
from gpucluster.terraform.plan import ResourceChange

#: The version of the file's format.
FORMAT = 1
# Variables of Terraform that differ between machines, or that a first apply chooses at random; the release is compared
# by itself.
_OF_THE_MACHINE = ("origin", "cluster_id", "recorded", "login_keys", "freeform_tags", "release")
_SHOWN = 20


@dataclass(frozen=True)
class World:
    """What a plan was made of.

    Args:
        gpucluster: the version of the package.
        content: the digest of the roles and programs that configure hosts.
        state: lineage and serial of Terraform's state; empty without one.
        fields: the values of cluster.yml.
        files: a digest of what comes from files that cluster.yml names, such as keys.
    """

    gpucluster: str = ""
    content: str = ""
    state: str = ""
    fields: Mapping[str, Any] | None = None
    files: str = ""


def digest_of_files(variables: Mapping[str, Any]) -> str:
    """A digest of the variables of Terraform, without those that are of a machine."""
    kept = {name: value for name, value in variables.items() if name not in _OF_THE_MACHINE}
    return hashlib.sha256(json.dumps(kept, sort_keys=True).encode()).hexdigest()


@dataclass(frozen=True)
class SavedPlan:
    """A plan in a file.

    Args:
        cluster: its name.
        world: what it was made of.
        plan: what `ClusterPlan.to_dict` has.
    """

    cluster: str
    world: World
    plan: Mapping[str, Any]

    def write(self, file: Path) -> None:
        """Write the file, which only its owner may read: values of resources are in it.

        Raises:
            EnvironmentFault: it can't be written.
        """
        content = {"format": FORMAT, "cluster": self.cluster, "world": vars(self.world), "plan": self.plan}
        write_private(file, json.dumps(content, indent=1, default=str) + "\n")

    @classmethod
    def read(cls, file: Path, cluster: str) -> SavedPlan:
        """Read a plan of this cluster.

        Raises:
            InputError: there is no such file, it is not a plan, or it is of another cluster.
            NewerReleaseError: a newer release has written it.
        """
        hint = "Make one: gpucluster plan --out FILE"
        try:
            content = bounded.loads(file.read_bytes())
        except OSError as error:
            raise InputError(f"can't read the plan: {error.strerror}", where=str(file), hint=hint) from error
        except ValueError as error:
            raise InputError("this is not a plan of gpucluster", where=str(file), hint=hint) from error
        if isinstance(content, dict):
            world = content.get("world")
            release = str(world.get("gpucluster") or "") if isinstance(world, dict) else ""
            found = content.get("format")
            formats.require_known(found, what="this plan", where=str(file), release=release, known=FORMAT)
        if not isinstance(content, dict) or content.get("format") != FORMAT:
            raise InputError("this is not a plan of this gpucluster", where=str(file), hint=hint)
        try:
            made = cls(str(content["cluster"]), World(**content["world"]), dict(content["plan"]))
        except (KeyError, TypeError, ValueError) as error:
            raise InputError("this plan is damaged", where=str(file), hint=hint) from error
        if made.cluster != cluster:
            raise InputError(
                f"this is a plan of the cluster {made.cluster}, and not of {cluster}",
                where=str(file),
                hint="Name the cluster file of that cluster with --file, or make a plan of this one",
            )
        return made

    def require(self, now: SavedPlan) -> None:
        """Refuse to go on if the plan of now is another one.

        Raises:
            MovedError: with what has moved. Nothing was changed.
        """
        found = list(moved(_as_read(self), _as_read(now)))
        if found:
            more = [f"and {len(found) - _SHOWN} more"] if len(found) > _SHOWN else []
            listed = "\n".join(f"  {line}" for line in [*found[:_SHOWN], *more])
            raise MovedError(
                f"the plan does not hold any more, and nothing was changed. What has moved:\n{listed}",
                hint="Look at a new plan: gpucluster plan --out FILE",
            )

    def require_planned(self, changes: Sequence[ResourceChange]) -> None:
        """Refuse changes of resources that are not in the plan.

        Raises:
            MovedError: with these changes.
        """
        planned = {(change["address"], change["action"]) for change in self.plan["changes"]}
        others = [f"{each.address}: {each.action}" for each in changes if (each.address, each.action) not in planned]
        if others:
            raise MovedError(
                f"these changes are not in the plan, and were not made: {', '.join(others)}",
                hint="Look at a new plan: gpucluster plan --out FILE",
            )


def moved(saved: SavedPlan, now: SavedPlan) -> Iterator[str]:
    """What is different now: each in a line. Both as they are read."""
    yield from _tool(saved.world, now.world)
    yield from _file(saved.world, now.world)
    if saved.world.state != now.world.state:
        yield f"state: {_serial(saved.world.state)} -> {_serial(now.world.state)}"
    # A first apply chooses the identity of the cluster, which is in the values of everything.
    yield from _resources(saved.plan["changes"], now.plan["changes"], values=bool(saved.world.state))
    for name in ("nodes", "controller", "login"):
        if saved.plan[name] != now.plan[name]:
            yield f"hosts ({name}): {_text(saved.plan[name])} -> {_text(now.plan[name])}"
    before, after = ([each["text"] for each in plan.plan["configuration"]] for plan in (saved, now))
    yield from (f"configuration of the hosts: not any more: {each}" for each in before if each not in after)
    yield from (f"configuration of the hosts: new: {each}" for each in after if each not in before)


def _tool(saved: World, now: World) -> Iterator[str]:
    if saved.gpucluster != now.gpucluster:
        yield f"gpucluster: {saved.gpucluster} -> {now.gpucluster}"
    elif saved.content != now.content:
        yield "gpucluster: its roles and programs are other ones of the same version"


def _file(saved: World, now: World) -> Iterator[str]:
    changes = updates.changes(saved.fields or {}, now.fields or {})
    yield from (f"cluster.yml: {each.path}: {_text(each.before)} -> {_text(each.after)}" for each in changes)
    if not changes and saved.files != now.files:
        yield "files that cluster.yml names, such as keys, or what images and pools lead to"


def _resources(saved: Sequence[Mapping[str, Any]], now: Sequence[Mapping[str, Any]], *, values: bool) -> Iterator[str]:
    before, after = ({change["address"]: change for change in changes} for changes in (saved, now))
    for address in dict.fromkeys([*before, *after]):
        old, new = before.get(address), after.get(address)
        if old is None or new is None:
            action = (new or old or {})["action"]
            yield f"resource {address}: {action} is {'not planned any more' if new is None else 'new'}"
        elif old["action"] != new["action"]:
            yield f"resource {address}: {old['action']} -> {new['action']}"
        elif values and old != new:
            names = [
                name
                for name in {**old["values"], **new["values"]}
                if old["values"].get(name) != new["values"].get(name)
            ]
            yield f"resource {address}: {old['action']} with other values: {', '.join(names) or 'of other attributes'}"


def _serial(state: str) -> str:
    lineage, _, serial = state.partition(" ")
    return f"serial {serial} of {lineage}" if serial else "none"


def _text(value: Any) -> str:
    text = json.dumps(value, sort_keys=True)
    return text if len(text) <= 200 else f"{text[:200]}..."  # noqa: PLR2004


def _as_read(plan: SavedPlan) -> SavedPlan:
    """As it would be read from its file."""
    content = json.loads(json.dumps({"world": vars(plan.world), "plan": plan.plan}, default=str))
    return SavedPlan(plan.cluster, World(**content["world"]), content["plan"])
