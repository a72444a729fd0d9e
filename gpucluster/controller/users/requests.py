"""Requests of programs: one JSON object in, one out."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any, TextIO

from gpucluster.controller.users import desired, host_entries, values
from gpucluster.controller.users.outcome import sentence
from gpucluster.controller.users.service import UserService
from gpucluster.node_agent.errors import AgentError, Refused, Unconfirmed, of_system

#: More than a file with ten thousand users has.
MAX_CHARACTERS = 64 * 1024 * 1024
_NAME = frozenset({"name"})


def _only_name(arguments: Any, allowed: frozenset[str] = _NAME) -> tuple[str, Mapping[str, Any]]:
    fields = desired.arguments(arguments, allowed, _NAME)
    return values.known_name(fields["name"], "user"), fields


def _nothing(arguments: Any) -> None:
    desired.arguments(arguments, frozenset())


def _base_tree(service: UserService, arguments: Any) -> dict[str, Any]:
    fields = desired.arguments(arguments, frozenset({"lock_held", "hosts"}))
    held = fields.get("lock_held", False)
    if not isinstance(held, bool):
        raise Refused("lock_held is true or false", 'Write {"lock_held": true} where the lock is held already')
    hosts = fields.get("hosts", {})
    if not isinstance(hosts, dict):
        raise Refused("hosts is not an object", 'Write {"NAME": "OCID", ...}')
    return {"changed": service.base_tree(host_entries.desired_hosts(hosts), lock_held=held)}


def _user_add(service: UserService, arguments: Any) -> dict[str, Any]:
    return service.add(desired.desired_user(arguments, service.local))


def _user_edit(service: UserService, arguments: Any) -> dict[str, Any]:
    return service.edit(desired.desired_user(arguments, service.local, desired.EDIT))


def _user_list(service: UserService, arguments: Any) -> dict[str, Any]:
    _nothing(arguments)
    return {"users": service.users()}


def _user_show(service: UserService, arguments: Any) -> dict[str, Any]:
    return {"user": service.user(_only_name(arguments)[0])}


def _user_disable(service: UserService, arguments: Any) -> dict[str, Any]:
    return service.access.disable(_only_name(arguments)[0])


def _user_enable(service: UserService, arguments: Any) -> dict[str, Any]:
    return service.access.enable(_only_name(arguments)[0])


def _user_remove(service: UserService, arguments: Any) -> dict[str, Any]:
    name, fields = _only_name(arguments, frozenset({"name", "home"}))
    home = fields.get("home", "keep")
    if home not in ("keep", "archive"):
        raise Refused(f"{values.shown(home)} can't be done with a home", "One of: keep, archive")
    return service.access.remove(name, archive=home == "archive")


def _user_import(service: UserService, arguments: Any) -> dict[str, Any]:
    fields = desired.arguments(arguments, frozenset({"users"}), frozenset({"users"}))
    if not isinstance(fields["users"], list):
        raise Refused("the users must be a list", 'Write {"users": [{"name": ...}, ...]}')
    rows: list[tuple[str, desired.DesiredUser | None, str]] = []
    good: list[desired.DesiredUser] = []
    seen = desired.UniqueUsers()
    for entry in fields["users"]:
        try:
            user = desired.desired_user(entry, service.local, desired.IMPORT)
            seen.add(user)
            good.append(user)
            rows.append((user.name, user, ""))
        except Refused as refused:
            name = entry.get("name") if isinstance(entry, dict) else None
            rows.append((str(name)[:64] if isinstance(name, str) else "?", None, sentence(refused)))
    outcome, report, before = service.add_many(good)
    users = []
    for name, row, message in rows:
        problem = outcome.problems.get(name) if row else None
        if row is None or problem:
            users.append({"name": name, "status": "failed", "message": sentence(problem) if problem else message})
        else:
            status = "added" if name not in before else "changed" if outcome.changed.get(name) else "unchanged"
            users.append({"name": name, "status": status})
    result = {"users": users, "changed": outcome.any_change, **report.result}
    # An error of a user ends the command with another status, and what hosts report is in the result.
    failed = any(user["status"] == "failed" for user in users)
    return result if failed else report.require(result, "the users are changed in the directory, but")


def _converge(service: UserService, arguments: Any) -> dict[str, Any]:
    fields = desired.arguments(arguments, frozenset({"people", "absent", "hosts"}))
    hosts = _present_hosts(fields["hosts"]) if "hosts" in fields else None
    people = [_described(user) for user in _list(fields.get("people", []), "people")]
    desired_users = desired.desired_users(people, service.local)
    absent = [values.known_name(name, "user") for name in _list(fields.get("absent", []), "absent")]
    twice = sorted({user.name for user in desired_users} & set(absent))
    if twice:
        raise Refused(f"{twice[0]} is mentioned twice", "A user is present or absent, not both")
    # Before what is wrong with a user ends this.
    revoked = service.revoke_hosts(hosts) if hosts else False
    outcome, state, removed, unconfirmed = service.converge(desired_users, absent)
    users = [{**user, "changed": outcome.changed.get(str(user["name"]), False)} for user in service.users(state)]
    warnings = [sentence(problem) for problem in outcome.in_homes().values()]
    changed = outcome.any_change or revoked
    result = {"changed": changed, "users": users, "removed": removed, "warnings": warnings}
    for error in unconfirmed:
        raise Unconfirmed(error.message, "To ask the hosts again, run: cluster user remove NAME", result)
    return result


def _present_hosts(arguments: Any) -> list[str]:
    """The permanent hosts."""
    fields = desired.arguments(arguments, frozenset({"permanent"}), frozenset({"permanent"}))
    permanent = _list(fields["permanent"], "permanent")
    if not all(isinstance(name, str) for name in permanent) or not permanent:
        raise Refused("hosts has no names", 'Write {"permanent": ["NAME"]}')
    return permanent


def _preview(service: UserService, arguments: Any) -> dict[str, Any]:
    fields = desired.arguments(arguments, frozenset({"people"}))
    people = [_described(user) for user in _list(fields.get("people", []), "people")]
    return service.preview(desired.desired_users(people, service.local))


def _described(user: Any) -> Any:
    """An empty full name or group in cluster.yml counts as not given; other empty keys mean empty."""
    if isinstance(user, dict):
        return {key: value for key, value in user.items() if not (key in ("full_name", "group") and value == "")}
    return user


def _list(value: Any, what: str) -> list[Any]:
    if not isinstance(value, list):
        raise Refused(f"{what} is not a list", "Write [...]")
    return value


def _group_add(service: UserService, arguments: Any) -> dict[str, Any]:
    fields = desired.arguments(arguments, frozenset({"name", "gid"}), _NAME)
    gid = values.number(fields["gid"], "gid") if "gid" in fields else None
    return service.add_group(values.group_name(fields["name"], service.local), gid)


def _group_list(service: UserService, arguments: Any) -> dict[str, Any]:
    _nothing(arguments)
    return {"groups": service.groups()}


def _group_remove(service: UserService, arguments: Any) -> dict[str, Any]:
    fields = desired.arguments(arguments, _NAME, _NAME)
    return service.remove_group(values.known_name(fields["name"], "group"))


def _member(service: UserService, arguments: Any, *, is_member: bool) -> dict[str, Any]:
    both = frozenset({"group", "user"})
    fields = desired.arguments(arguments, both, both)
    group, user = values.known_name(fields["group"], "group"), values.known_name(fields["user"], "user")
    return service.set_member(group, user, is_member=is_member)


def _add_member(service: UserService, arguments: Any) -> dict[str, Any]:
    return _member(service, arguments, is_member=True)


def _remove_member(service: UserService, arguments: Any) -> dict[str, Any]:
    return _member(service, arguments, is_member=False)


OPERATIONS: Mapping[str, Callable[[UserService, Any], dict[str, Any]]] = {
    "base_tree": _base_tree,
    "converge": _converge,
    "converge.preview": _preview,
    "user.add": _user_add,
    "user.edit": _user_edit,
    "user.list": _user_list,
    "user.show": _user_show,
    "user.disable": _user_disable,
    "user.enable": _user_enable,
    "user.remove": _user_remove,
    "user.import": _user_import,
    "group.add": _group_add,
    "group.list": _group_list,
    "group.remove": _group_remove,
    "group.add_member": _add_member,
    "group.remove_member": _remove_member,
}


def carry_out(service: UserService, operation: Any, arguments: Any) -> dict[str, Any]:
    """The result of one operation.

    Raises:
        AgentError: Refused or Failed.
    """
    work = OPERATIONS.get(operation) if isinstance(operation, str) else None
    if work is None:
        raise Refused(f"there is no operation {values.shown(operation)}", f"One of: {', '.join(OPERATIONS)}")
    existing = service.config.existing
    if existing is not None:
        raise Refused(
            f"the users of this cluster are in a directory that exists, {existing.servers[0]}",
            "Change them there: members of a group in users.directory.user_groups are users within minutes",
        )
    try:
        result = work(service, arguments)
        service.check_followed(result)
        return result
    except OSError as error:
        raise of_system(error) from error


def answer(make: Callable[[], UserService], text: str) -> tuple[int, dict[str, Any]]:
    """Exit status and answer for a request.

    Args:
        make: reads the configuration, which may fail.
        text: the request.
    """
    try:
        try:
            request = json.loads(text)
        except (ValueError, RecursionError) as error:
            raise Refused("standard input is not JSON", 'Write {"operation": ..., "arguments": {...}}') from error
        if not isinstance(request, dict) or set(request) - {"operation", "arguments"}:
            raise Refused("standard input is not a request", 'Write {"operation": ..., "arguments": {...}}')
        return 0, {"result": carry_out(make(), request.get("operation"), request.get("arguments", {}))}
    except AgentError as error:
        return error.status, failure(error)


def failure(error: AgentError) -> dict[str, Any]:
    """The answer for an error, with what was done nevertheless."""
    reply: dict[str, Any] = {"error": {"message": error.message, "hint": error.hint}}
    if error.partial_result is not None:
        reply["done"] = error.partial_result
    return reply


def serve(make: Callable[[], UserService], source: TextIO, target: TextIO) -> int:
    """Answer one request; returns the exit status."""
    try:
        text = source.read(MAX_CHARACTERS + 1)
    except UnicodeDecodeError:
        text = ""
    status, reply = (
        answer(make, text)
        if len(text) <= MAX_CHARACTERS
        else (Refused.status, failure(Refused("the request is too long", "Send fewer users at once")))
    )
    target.write(json.dumps(reply) + "\n")
    return status
