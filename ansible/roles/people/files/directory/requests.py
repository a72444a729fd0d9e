"""The door for programs: one JSON object in, one out."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any, TextIO

from directory import names, wishes
from directory.errors import PeopleError, Refused, of_system
from directory.outcome import sentence
from directory.service import Service

#: More than a file with ten thousand users has.
MAX_CHARACTERS = 64 * 1024 * 1024
_NAME = frozenset({"name"})


def _only_name(given: Any, allowed: frozenset[str] = _NAME) -> tuple[str, Mapping[str, Any]]:
    said = wishes.arguments(given, allowed, _NAME)
    return names.known_name(said["name"], "user"), said


def _nothing(given: Any) -> None:
    wishes.arguments(given, frozenset())


def _frame(service: Service, given: Any) -> dict[str, Any]:
    held = wishes.arguments(given, frozenset({"lock_held"})).get("lock_held", False)
    if not isinstance(held, bool):
        raise Refused("lock_held is true or false", 'Write {"lock_held": true} where the lock is held already')
    return {"changed": service.frame(lock_held=held), "service_dn": service.config.service_dn}


def _user_add(service: Service, given: Any) -> dict[str, Any]:
    return service.add(wishes.wish(given, service.here))


def _user_edit(service: Service, given: Any) -> dict[str, Any]:
    return service.edit(wishes.wish(given, service.here, wishes.EDIT))


def _user_list(service: Service, given: Any) -> dict[str, Any]:
    _nothing(given)
    return {"users": service.users()}


def _user_show(service: Service, given: Any) -> dict[str, Any]:
    return {"user": service.user(_only_name(given)[0])}


def _user_disable(service: Service, given: Any) -> dict[str, Any]:
    return service.leaving.disable(_only_name(given)[0])


def _user_enable(service: Service, given: Any) -> dict[str, Any]:
    return service.leaving.enable(_only_name(given)[0])


def _user_remove(service: Service, given: Any) -> dict[str, Any]:
    name, said = _only_name(given, frozenset({"name", "home"}))
    home = said.get("home", "keep")
    if home not in ("keep", "archive"):
        raise Refused(f"{names.shown(home)} can't be done with a home", "One of: keep, archive")
    return service.leaving.remove(name, archive=home == "archive")


def _user_import(service: Service, given: Any) -> dict[str, Any]:
    said = wishes.arguments(given, frozenset({"users"}), frozenset({"users"}))
    if not isinstance(said["users"], list):
        raise Refused("the users come as a list", 'Write {"users": [{"name": ...}, ...]}')
    rows: list[tuple[str, wishes.Wish | None, str]] = []
    good: list[wishes.Wish] = []
    together = wishes.Together()
    for one in said["users"]:
        try:
            wish = wishes.wish(one, service.here, wishes.IMPORT)
            together.add(wish)
            good.append(wish)
            rows.append((wish.name, wish, ""))
        except Refused as refused:
            name = one.get("name") if isinstance(one, dict) else None
            rows.append((str(name)[:64] if isinstance(name, str) else "?", None, sentence(refused)))
    outcome, _state, before = service.add_many(good)
    users = []
    for name, row, message in rows:
        problem = outcome.problems.get(name) if row else None
        if row is None or problem:
            users.append({"name": name, "status": "failed", "message": sentence(problem) if problem else message})
        else:
            status = "added" if name not in before else "changed" if outcome.changed.get(name) else "unchanged"
            users.append({"name": name, "status": status})
    return {"users": users, "changed": outcome.any_change}


def _converge(service: Service, given: Any) -> dict[str, Any]:
    said = wishes.arguments(given, frozenset({"people", "absent"}))
    people = [_described(person) for person in _list(said.get("people", []), "people")]
    wanted = wishes.wishes(people, service.here)
    absent = [names.known_name(name, "user") for name in _list(said.get("absent", []), "absent")]
    twice = sorted({wish.name for wish in wanted} & set(absent))
    if twice:
        raise Refused(f"{twice[0]} is mentioned twice", "Somebody is there or absent, not both")
    outcome, state, removed = service.converge(wanted, absent)
    users = [{**user, "changed": outcome.changed.get(str(user["name"]), False)} for user in service.users(state)]
    warnings = [sentence(problem) for problem in outcome.in_homes().values()]
    return {"changed": outcome.any_change, "users": users, "removed": removed, "warnings": warnings}


def _described(person: Any) -> Any:
    """Keys that are empty in a description are meant to be empty; a full name that is empty is none."""
    if isinstance(person, dict):
        return {key: value for key, value in person.items() if not (key in ("full_name", "group") and value == "")}
    return person


def _list(value: Any, what: str) -> list[Any]:
    if not isinstance(value, list):
        raise Refused(f"{what} is no list", "Write [...]")
    return value


def _group_add(service: Service, given: Any) -> dict[str, Any]:
    said = wishes.arguments(given, frozenset({"name", "gid"}), _NAME)
    gid = names.number(said["gid"], "gid") if "gid" in said else None
    return service.add_group(names.group_name(said["name"], service.here), gid)


def _group_list(service: Service, given: Any) -> dict[str, Any]:
    _nothing(given)
    return {"groups": service.groups()}


def _group_remove(service: Service, given: Any) -> dict[str, Any]:
    said = wishes.arguments(given, _NAME, _NAME)
    return service.remove_group(names.known_name(said["name"], "group"))


def _member(service: Service, given: Any, *, wanted: bool) -> dict[str, Any]:
    both = frozenset({"group", "user"})
    said = wishes.arguments(given, both, both)
    group, user = names.known_name(said["group"], "group"), names.known_name(said["user"], "user")
    return service.set_member(group, user, wanted=wanted)


def _add_member(service: Service, given: Any) -> dict[str, Any]:
    return _member(service, given, wanted=True)


def _remove_member(service: Service, given: Any) -> dict[str, Any]:
    return _member(service, given, wanted=False)


OPERATIONS: Mapping[str, Callable[[Service, Any], dict[str, Any]]] = {
    "frame": _frame,
    "converge": _converge,
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


def carry_out(service: Service, operation: Any, given: Any) -> dict[str, Any]:
    """The result of one operation.

    Raises:
        PeopleError: Refused or Failed.
    """
    work = OPERATIONS.get(operation) if isinstance(operation, str) else None
    if work is None:
        raise Refused(f"there is no operation {names.shown(operation)}", f"One of: {', '.join(OPERATIONS)}")
    try:
        return work(service, given)
    except OSError as error:
        raise of_system(error) from error


def answer(make: Callable[[], Service], text: str) -> tuple[int, dict[str, Any]]:
    """Exit status and answer to a request.

    Args:
        make: reads the configuration, which may fail.
        text: what came in.
    """
    try:
        try:
            request = json.loads(text)
        except (ValueError, RecursionError) as error:
            raise Refused("standard input is no JSON", 'Write {"operation": ..., "arguments": {...}}') from error
        if not isinstance(request, dict) or set(request) - {"operation", "arguments"}:
            raise Refused("standard input is no request", 'Write {"operation": ..., "arguments": {...}}')
        return 0, {"result": carry_out(make(), request.get("operation"), request.get("arguments", {}))}
    except PeopleError as error:
        return error.status, failure(error)


def failure(error: PeopleError) -> dict[str, Any]:
    """What is said of an error, and of what was done in spite of it."""
    said: dict[str, Any] = {"error": {"message": error.message, "hint": error.hint}}
    if error.done is not None:
        said["done"] = error.done
    return said


def serve(make: Callable[[], Service], source: TextIO, target: TextIO) -> int:
    """Answer one request; returns the exit status."""
    try:
        text = source.read(MAX_CHARACTERS + 1)
    except UnicodeDecodeError:
        text = ""
    status, said = (
        answer(make, text)
        if len(text) <= MAX_CHARACTERS
        else (Refused.status, failure(Refused("the request is too long", "Send fewer users at once")))
    )
    target.write(json.dumps(said) + "\n")
    return status
