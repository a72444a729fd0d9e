"""System accounts for daemons."""

from __future__ import annotations

import grp
import pwd
from typing import Any

from ansible.module_utils.basic import AnsibleModule

ACCOUNT_SPEC: dict[str, dict[str, Any]] = {
    "name": {"type": "str", "required": True},
    "home": {"type": "path", "required": True},
    "id": {"type": "int"},
}


def make_accounts(module: AnsibleModule, wanted: list[dict[str, Any]]) -> list[str]:
    """Create missing accounts, each with a group of the same name; returns their names."""
    missing = [account for account in wanted if not is_known(account["name"])]
    if not module.check_mode:
        for account in missing:
            argv = ["useradd", "--system", "--no-create-home", "--shell", "/usr/sbin/nologin"]
            group = ["--user-group"]
            if account.get("id") is not None:
                number = str(account["id"])
                if not group_is_known(account["name"]):
                    module.run_command(["groupadd", "--system", "--gid", number, account["name"]], check_rc=True)
                group = ["--uid", number, "--gid", account["name"]]
            module.run_command([*argv, *group, "--home-dir", account["home"], account["name"]], check_rc=True)
    return [account["name"] for account in missing]


def group_is_known(name: str) -> bool:
    """Whether a group exists."""
    try:
        grp.getgrnam(name)
    except KeyError:
        return False
    return True


def is_known(name: str) -> bool:
    """Whether a user exists."""
    try:
        pwd.getpwnam(name)
    except KeyError:
        return False
    return True
