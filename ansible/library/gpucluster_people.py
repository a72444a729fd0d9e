#!/usr/bin/python
"""Local accounts of users: for clusters without an LDAP directory.

Instead of plain tasks: `group`, `user`, `file` and a collection's `authorized_key` for each user: four tasks for
each, where this is one for all.
"""

from __future__ import annotations

import grp
import os
import pwd
import shutil
from pathlib import Path
from typing import Any, Callable

from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.gpucluster_files import with_block

DOCUMENTATION = """
module: gpucluster_people
short_description: Local accounts of users
description:
  - Groups, accounts with the same numbers on every host, homes with mode 0700, and authorized keys in a marked block.
    Other accounts are not changed.
options:
  groups:
    description: Groups with a fixed gid. Other groups of users get the next free one.
    type: list
    elements: dict
    required: true
    suboptions:
      name: {description: Name., type: str, required: true}
      gid: {description: Number., type: int, required: true}
  people:
    description: Users who may log in.
    type: list
    elements: dict
    required: true
    suboptions:
      name: {description: Login name., type: str, required: true}
      uid: {description: Number., type: int, required: true}
      full_name: {description: Full name., type: str, default: ""}
      group: {description: Primary group., type: str, required: true}
      groups: {description: "Further groups, and no others.", type: list, elements: str, default: []}
      shell: {description: Login shell., type: path, default: /bin/bash}
      ssh_keys: {description: Public keys., type: list, elements: str, default: []}
      generated_key: {description: "Ignored: it is one of O(people[].ssh_keys).", type: str}
      slurm_account: {description: "Ignored: there is no Slurm.", type: str}
  home_base: {description: Where homes are., type: path, default: /home}
author: gpucluster
"""

EXAMPLES = """
- name: Create the accounts
  gpucluster_people:
    groups: [{name: people, gid: 9999}]
    people: [{name: alice, uid: 10001, group: people}]
"""

RETURN = """
made: {description: Accounts and groups that were created., returned: always, type: list}
"""

USER_SPEC: dict[str, dict[str, Any]] = {
    "name": {"type": "str", "required": True},
    "uid": {"type": "int", "required": True},
    "full_name": {"type": "str", "default": ""},
    "group": {"type": "str", "required": True},
    "groups": {"type": "list", "elements": "str", "default": []},
    "shell": {"type": "path", "default": "/bin/bash"},
    "ssh_keys": {"type": "list", "elements": "str", "default": [], "no_log": False},
    "generated_key": {"type": "str", "no_log": False},
    "slurm_account": {"type": "str"},
}


def group_of(name: str) -> grp.struct_group | None:
    """The group, None if it does not exist."""
    try:
        return grp.getgrnam(name)
    except KeyError:
        return None


def account_of(name: str) -> pwd.struct_passwd | None:
    """The account, None if it does not exist."""
    try:
        return pwd.getpwnam(name)
    except KeyError:
        return None


def differences(user: dict[str, Any], account: pwd.struct_passwd, memberships: set[str], gid: int) -> list[str]:
    """The arguments of usermod that change an account as requested."""
    words: list[str] = []
    if account.pw_gecos != user["full_name"]:
        words += ["--comment", user["full_name"]]
    if account.pw_shell != user["shell"]:
        words += ["--shell", user["shell"]]
    if account.pw_gid != gid:
        words += ["--gid", user["group"]]
    if memberships != set(user["groups"]) - {user["group"]}:
        words += ["--groups", ",".join(user["groups"])]
    return words


def as_user(account: pwd.struct_passwd, work: Callable[[], bool]) -> bool:
    """Run a function in a child process with the user's uid: links in a home lead only where its owner may write.

    Raises:
        OSError: it failed, with the message of the child.
    """
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        status = 1
        try:
            os.initgroups(account.pw_name, account.pw_gid)
            os.setgid(account.pw_gid)
            os.setuid(account.pw_uid)
            os.umask(0o077)
            answer = "changed" if work() else ""
            status = 0
        except OSError as error:
            answer = f"{error.filename}: {error.strerror}"
        with os.fdopen(writing, "w", encoding="utf-8") as pipe:
            pipe.write(answer)
        os._exit(status)
    os.close(writing)
    with os.fdopen(reading, encoding="utf-8") as pipe:
        answer = pipe.read()
    _pid, ended = os.waitpid(child, 0)
    if ended != 0:
        raise OSError(0, answer)
    return bool(answer)


def copy_skeleton(home: Path, skeleton: Path = Path("/etc/skel")) -> bool:
    """Fill a new home; it is the user's process that does so."""
    if skeleton.is_dir():
        shutil.copytree(skeleton, home, symlinks=True, dirs_exist_ok=True)
        home.chmod(0o700)
    return True


def write(file: Path, text: str, mode: int) -> bool:
    """Write a file atomically; returns whether it changed."""
    if file.is_file() and not file.is_symlink() and file.read_text(encoding="utf-8") == text:
        return False
    fresh = file.with_name(f".{file.name}.gpucluster")
    fresh.unlink(missing_ok=True)
    with open(os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode), "w", encoding="utf-8") as stream:
        stream.write(text)
    fresh.replace(file)
    return True


class People:
    """Creates groups and accounts, and records the changes."""

    def __init__(self, module: AnsibleModule) -> None:
        self.module = module
        self.made: list[str] = []
        self.changed = False

    def group(self, name: str, gid: int | None) -> None:
        """Create a missing group. Fails if it has another gid: its files would lose their group."""
        present = group_of(name)
        if present and gid is not None and present.gr_gid != gid:
            self.module.fail_json(msg=f"group {name} has gid {present.gr_gid} on this host, not {gid}")
        if not present:
            self.run(["groupadd", *(["--gid", str(gid)] if gid is not None else []), name])
            self.made.append(name)

    def account(self, user: dict[str, Any], home_base: Path) -> None:
        """Create or change an account."""
        present = account_of(user["name"])
        if present is None:
            words = ["--uid", str(user["uid"]), "--gid", user["group"], "--comment", user["full_name"]]
            words += ["--home-dir", str(home_base / user["name"]), "--shell", user["shell"]]
            words += ["--groups", ",".join(user["groups"])] if user["groups"] else []
            # No password matches `*`; with an empty or locked one some systems refuse ssh keys.
            self.run(["useradd", "--no-create-home", "--password", "*", *words, user["name"]])
            self.made.append(user["name"])
            return
        if present.pw_uid != user["uid"]:
            self.module.fail_json(msg=f"{user['name']} has uid {present.pw_uid} on this host, not {user['uid']}")
        memberships = {group.gr_name for group in grp.getgrall() if user["name"] in group.gr_mem}
        primary = group_of(user["group"])
        words = differences(user, present, memberships, primary.gr_gid if primary else -1)
        if words:
            self.run(["usermod", *words, user["name"]])

    def home(self, user: dict[str, Any]) -> None:
        """Create the home and its contents."""
        account = account_of(user["name"])
        if account is None:
            return  # only in check mode
        home = Path(account.pw_dir)
        if not home.exists():
            self.changed = True
            if self.module.check_mode:
                return
            # Only root writes to its parent. Once the home has its owner, root does nothing in it.
            home.mkdir(mode=0o700)
            os.chown(home, account.pw_uid, account.pw_gid)
            as_user(account, lambda: copy_skeleton(home))
        if not self.module.check_mode:
            self.changed = as_user(account, lambda: self._fill(home, user)) or self.changed

    @staticmethod
    def _fill(home: Path, user: dict[str, Any]) -> bool:
        ssh = home / ".ssh"
        ssh.mkdir(mode=0o700, exist_ok=True)
        file = ssh / "authorized_keys"
        old = file.read_text(encoding="utf-8") if file.is_file() else ""
        keys = "\n".join(key.strip() for key in user["ssh_keys"])
        return write(file, with_block(old, keys, "top"), 0o600)

    def run(self, argv: list[str]) -> None:
        """Run a program that changes something, except in check mode."""
        self.changed = True
        if not self.module.check_mode:
            self.module.run_command(argv, check_rc=True)


def main() -> None:
    """Entry point."""
    group_spec = {"name": {"type": "str", "required": True}, "gid": {"type": "int", "required": True}}
    module = AnsibleModule(
        argument_spec={
            "groups": {"type": "list", "elements": "dict", "required": True, "options": group_spec},
            "people": {"type": "list", "elements": "dict", "required": True, "options": USER_SPEC},
            "home_base": {"type": "path", "default": "/home"},
        },
        supports_check_mode=True,
    )
    params = module.params
    people = People(module)
    try:
        fixed = {group["name"]: group["gid"] for group in params["groups"]}
        named = {name for user in params["people"] for name in [user["group"], *user["groups"]]}
        for name in [*fixed, *sorted(named - set(fixed))]:
            people.group(name, fixed.get(name))
        for user in params["people"]:
            people.account(user, Path(params["home_base"]))
            people.home(user)
    except OSError as error:
        module.fail_json(msg=" ".join(str(word) for word in (error.filename, error.strerror) if word))
    module.exit_json(changed=people.changed, made=people.made)


if __name__ == "__main__":
    main()
