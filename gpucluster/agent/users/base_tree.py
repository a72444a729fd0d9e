"""The directory's base tree (DIT): units, counters, the cluster's groups, and the entry that hosts bind with."""

from __future__ import annotations

from gpucluster.agent.errors import Failed
from gpucluster.agent.users import passwords
from gpucluster.agent.users.controller import Controller
from gpucluster.agent.users.state import State


def make(controller: Controller) -> bool:
    """Create what is missing; returns whether anything changed. The caller holds the lock.

    Raises:
        Failed: the server does not accept the password that hosts bind with.
    """
    changed = passwords.keep_file(controller.config.service_password_file)
    plan = controller.plan(controller.state(), {})
    changed = controller.apply(plan) or changed
    return _keep_password(controller, plan.state) or changed


def _keep_password(controller: Controller, state: State) -> bool:
    file, dn = controller.config.service_password_file, controller.config.service_dn
    if state.service_password and controller.ldap.accepts(dn, file):
        return False
    password = file.read_text(encoding="utf-8")
    # A server without the module of the first scheme stores the hash and does not accept the password then.
    for scheme in passwords.SCHEMES:
        plan = controller.plan(controller.state(), {})
        plan.service_password(passwords.hashed(password, (scheme, passwords.SCHEMES[-1])))
        controller.apply(plan)
        if controller.ldap.accepts(dn, file):
            return True
    raise Failed(f"the directory does not accept the password in {file}", "Remove that file and try again")
