"""Stands for `ssh controller -- sudo -n /usr/local/bin/cluster request`: a small directory in a file.

It is installed as `ssh` on PATH. It proves what gpucluster sends and how it takes answers, and proves nothing about the
real program, its rules, LDAP or hosts (see tests/controller/users). `answer.json` beside it, if there, is given
instead: {"stdout": ..., "stderr": ..., "status": ...}. Every call is written to `calls.jsonl`.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

HERE = Path(sys.argv[0]).parent
PEOPLE_GID, PRIVILEGE_GID, FIRST_UID = 9999, 9876, 10001
PLAIN = ("full_name", "shell", "slurm_account")

Users = dict[str, dict[str, Any]]


class Refused(Exception):
    """What is asked for is not possible."""


def known(users: Users, name: str) -> dict[str, Any]:
    if name not in users:
        raise Refused(f"there is no user {name}")
    return users[name]


def fill(user: dict[str, Any], asked: dict[str, Any]) -> bool:
    """Take over what is asked; whether it was a change."""
    before = json.dumps(user)
    user.update({key: asked[key] for key in PLAIN if key in asked})
    user["gid"] = asked.get("gid", user["gid"])
    user["group"] = "privilege" if user["gid"] == PRIVILEGE_GID else "people"
    user["groups"] = asked.get("groups", user["groups"])
    user["groups"] = [name for name in user["groups"] if name not in asked.get("remove_groups", ())]
    user["groups"] += [name for name in asked.get("add_groups", ()) if name not in user["groups"]]
    user["ssh_keys"] = asked.get("ssh_keys", user["ssh_keys"])
    user["ssh_keys"] += [key for key in asked.get("add_ssh_keys", ()) if key not in user["ssh_keys"]]
    if new := asked.get("replace_generated_key"):
        user["ssh_keys"] = [*(key for key in user["ssh_keys"] if key.split()[2] != new.split()[2]), new]
    user["privileged"] = user["gid"] == PRIVILEGE_GID or "privilege" in user["groups"]
    return json.dumps(user) != before


def add(users: Users, asked: dict[str, Any]) -> dict[str, Any]:
    name = asked["name"]
    if not (name.isascii() and name.isalnum()):
        raise Refused(f"{name} can't be a name")
    if name in users:
        raise Refused(f"there is a user {name} already")
    user = {
        "name": name,
        "uid": asked.get("uid", FIRST_UID + len(users)),
        "gid": PEOPLE_GID,
        "group": "people",
        "groups": [],
        "full_name": name,
        "home": f"/mnt/home/{name}",
        "shell": "/bin/bash",
        "ssh_keys": [],
        "enabled": True,
        "privileged": False,
        "slurm_account": None,
        "of a later version": 1,
    }
    fill(user, asked)
    users[name] = user
    return {"user": user, "changed": True}


def edit(users: Users, asked: dict[str, Any]) -> dict[str, Any]:
    changed = fill(known(users, asked["name"]), asked)
    return {"user": users[asked["name"]], "changed": changed or "password" in asked}


def switch(users: Users, name: str, on: bool) -> dict[str, Any]:
    user = known(users, name)
    changed, user["enabled"] = user["enabled"] != on, on
    ended = {"jobs": 0 if on else 1, "processes": 0 if on else 3}
    warnings = [] if on else ["look with docker ps"]
    return {
        "user": user,
        "changed": changed,
        "ended": ended,
        "unreachable": [],
        "unconfirmed": {},
        "warnings": warnings,
    }


def remove(users: Users, asked: dict[str, Any]) -> dict[str, Any]:
    user = known(users, asked["name"])
    del users[asked["name"]]
    packed = asked["home"] == "archive"
    return {
        "name": user["name"],
        "removed": {"entry": True, "association": True, "keys": len(user["ssh_keys"]), "jobs": 1, "processes": 2},
        "kept": [] if packed else [user["home"]],
        "archive": f"/mnt/home/.archive/{user['name']}.tar.gz" if packed else None,
        "unreachable": [],
    }


def bring_in(users: Users, people: list[dict[str, Any]]) -> dict[str, Any]:
    told: list[dict[str, Any]] = []
    for asked in people:
        try:
            if asked["name"] in users:
                status = "changed" if fill(users[asked["name"]], asked) else "unchanged"
            else:
                add(users, asked)
                status = "added"
            told.append({"name": asked["name"], "status": status})
        except Refused as refused:
            told.append({"name": asked["name"], "status": "failed", "message": str(refused)})
    return {"users": told, "changed": any(one["status"] in ("added", "changed") for one in told)}


def membership(users: Users, group: str, name: str, add_it: bool) -> dict[str, Any]:
    user = known(users, name)
    changed = fill(user, {"add_groups" if add_it else "remove_groups": [group]})
    return {"group": group_of(users, group), "changed": changed}


def group_of(users: Users, name: str) -> dict[str, Any]:
    return {"name": name, "gid": 20001, "members": [user["name"] for user in users.values() if name in user["groups"]]}


def do(users: Users, operation: str, asked: dict[str, Any]) -> dict[str, Any]:
    names = {name for user in users.values() for name in user["groups"]}
    ways: dict[str, Callable[[], dict[str, Any]]] = {
        "user.add": lambda: add(users, asked),
        "user.edit": lambda: edit(users, asked),
        "user.list": lambda: {"users": list(users.values())},
        "user.show": lambda: {"user": known(users, asked["name"])},
        "user.disable": lambda: switch(users, asked["name"], False),
        "user.enable": lambda: switch(users, asked["name"], True),
        "user.remove": lambda: remove(users, asked),
        "user.import": lambda: bring_in(users, asked["users"]),
        "group.add": lambda: {"group": {"name": asked["name"], "gid": asked.get("gid", 20001), "members": []},
                              "changed": True},
        "group.list": lambda: {"groups": [group_of(users, name) for name in sorted(names)]},
        "group.remove": lambda: {"name": asked["name"], "changed": True},
        "group.add_member": lambda: membership(users, asked["group"], asked["user"], True),
        "group.remove_member": lambda: membership(users, asked["group"], asked["user"], False),
    }  # fmt: skip
    return ways[operation]()


def main() -> int:
    text = sys.stdin.read()
    with (HERE / "calls.jsonl").open("a") as calls:
        calls.write(json.dumps({"argv": sys.argv[1:], "stdin": text}) + "\n")
    canned = HERE / "answer.json"
    if canned.exists():
        answer = json.loads(canned.read_text())
        sys.stdout.write(answer["stdout"])
        sys.stderr.write(answer["stderr"])
        return int(answer["status"])
    file = HERE / "users.json"
    users: Users = json.loads(file.read_text()) if file.exists() else {}
    request = json.loads(text)
    try:
        result = do(users, request["operation"], request["arguments"])
    except Refused as refused:
        print(json.dumps({"error": {"message": str(refused), "hint": "Look: cluster user list"}}))
        return 2
    file.write_text(json.dumps(users))
    print(json.dumps({"result": result}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
