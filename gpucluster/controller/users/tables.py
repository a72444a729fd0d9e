"""Results as text."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from gpucluster.controller.columns import columns, padded

_USER_COLUMNS = ("NAME", "UID", "GROUP", "GROUPS", "FULL NAME", "STATE", "ACCOUNT")


def plain(text: str) -> str:
    """The text without control characters; entries may have been written by hand."""
    return "".join(character if character.isprintable() else "?" for character in text)


def text(operation: str, result: Mapping[str, Any]) -> str:
    """A result as text."""
    known = {"user.list": _users, "group.list": _groups, "user.import": _imported, "user.remove": _removal}
    if operation in known:
        lines = known[operation](result)
    elif operation == "group.remove":
        lines = [f"group {result['name']} is removed"]
    else:
        lines = _group(result["group"]) if "group" in result else _user(result)
    lines += _missed(result) + list(result.get("warnings", ()))
    return "".join(plain(line) + "\n" for line in lines)


def _users(result: Mapping[str, Any]) -> list[str]:
    return table(_USER_COLUMNS, [_user_row(user) for user in result["users"]])


def _groups(result: Mapping[str, Any]) -> list[str]:
    rows = [(group["name"], str(group["gid"]), ", ".join(group["members"])) for group in result["groups"]]
    return table(("NAME", "GID", "MEMBERS"), rows)


def _imported(result: Mapping[str, Any]) -> list[str]:
    rows = [(user["name"], user["status"], user.get("message", "")) for user in result["users"]]
    return table(("NAME", "STATUS", ""), rows)


def _group(group: Mapping[str, Any]) -> list[str]:
    return [f"group {group['name']}, gid {group['gid']}: {', '.join(group['members']) or 'no members'}"]


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    """Rows as lines with aligned columns."""
    lines = [list(head), *([plain(cell) for cell in row] for row in rows)]
    widths = [max(columns(line[column]) for line in lines) for column in range(len(head))]
    cells = (zip(line, widths) for line in lines)
    return ["  ".join(padded(cell, width) for cell, width in line).rstrip() for line in cells]


def _user_row(user: Mapping[str, Any]) -> tuple[str, ...]:
    state = "enabled" if user["enabled"] else "disabled"
    groups = ",".join(user["groups"])
    account = user["slurm_account"] or "-"
    return (user["name"], str(user["uid"]), user["group"], groups, user["full_name"], state, account)


def _user(result: Mapping[str, Any]) -> list[str]:
    user = result["user"]
    lines = [
        f"{user['name']} ({user['full_name']}): uid {user['uid']}, group {user['group']} ({user['gid']})"
        + (f", and {', '.join(user['groups'])}" if user["groups"] else ""),
        f"home {user['home']}, shell {user['shell']}, ssh keys {len(user['ssh_keys'])}, "
        + f"account {user['slurm_account'] or 'none'}",
    ]
    if user["privileged"]:
        lines.append("has root's rights in containers")
    if not user["enabled"]:
        lines.append("is disabled")
    ended = result.get("ended")
    if ended and not user["enabled"]:
        lines.append(f"ended: {ended['jobs']} jobs, {ended['processes']} processes")
    return lines


def _removal(result: Mapping[str, Any]) -> list[str]:
    removed = result["removed"]
    keys = f"{removed['keys']} ssh keys" if removed["keys"] else ""
    parts = ["directory entry" if removed["entry"] else "", keys, "association" if removed["association"] else ""]
    parts = list(filter(None, parts))
    lines = [
        f"{result['name']} is removed: {', '.join(parts) or 'nothing was left'}; "
        f"{removed['jobs']} jobs and {removed['processes']} processes ended"
    ]
    lines += [f"archived: {result['archive']}"] if result["archive"] else []
    lines += [f"kept: {path}" for path in result["kept"]]
    return lines


def _missed(result: Mapping[str, Any]) -> list[str]:
    silent = ", ".join(result.get("unreachable", ()))
    lines = [f"no answer from {silent}: old groups, keys and processes may still be there"] if silent else []
    return lines + [f"not confirmed by {host}: {why}" for host, why in result.get("unconfirmed", {}).items()]
