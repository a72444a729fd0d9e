"""The role `ldap` on a controller without Slurm, for tests that boot it."""

from __future__ import annotations

from typing import Any

from tests.ansible.render import INVENTORY
from tests.controller.users.harness import HOMES

TASKS: list[dict[str, Any]] = [
    {"import_role": {"name": "base", "tasks_from": "gather_facts"}},
    {"import_role": {"name": "ldap"}},
]
VARIABLES = INVENTORY | {
    "home_mount_path": HOMES,
    "slurm_enabled": False,
    "slurm_accounting": False,
    "scheduler": "none",
    "users_people": [],
}
