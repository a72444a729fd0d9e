"""What is in the directory before anybody is: units, counters, the cluster's groups, and the lookup's own entry."""

from __future__ import annotations

from directory import passwords
from directory.controller import Controller
from directory.errors import Failed
from directory.state import State


def make(controller: Controller) -> bool:
    """Make what is missing; says whether anything changed. The lock is held by whoever calls.

    Raises:
        Failed: the server does not take the lookup's password.
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
    # A server without the module for the first scheme stores it and then does not know it.
    for scheme in passwords.SCHEMES:
        plan = controller.plan(controller.state(), {})
        plan.service_password(passwords.hashed(password, (scheme, passwords.SCHEMES[-1])))
        controller.apply(plan)
        if controller.ldap.accepts(dn, file):
            return True
    raise Failed(f"the directory does not accept the password in {file}", "Remove that file and try again")
