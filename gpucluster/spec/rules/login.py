"""Rules of `login`: the login nodes."""

from __future__ import annotations

from gpucluster.spec.defaults import has_login_nodes
from gpucluster.spec.model import ClusterSpec
from gpucluster.spec.rules.context import RuleContext
from gpucluster.spec.rules.machines import check_machine
from gpucluster.text import count

RULES = (
    "Login nodes need the home share, where the directory of users belongs to; with them no pool is named `login` or "
    "`<name>-login`, which are names of theirs.",
)


def check(context: RuleContext) -> None:
    """Add every error of `login`."""
    login = context.section("login")
    if login.get("image", {}) is None and not context.written(("login", "image")):
        login = {**login, "image": {}}  # that of the controller, where the error is
    check_machine(context, ("login",), login)
    if not has_login_nodes(context.data):
        return
    if context.section("storage", "home").get("enabled") is False:
        message = "login nodes need the home share, with which users and their homes are the same on every host"
        context.error(("login", "count"), message, "Delete `login`, or enable storage.home")
    name = context.data.get("name")
    for pool in context.section("pools"):
        if pool == "login" or (isinstance(name, str) and pool == f"{name}-login"):
            message = f"{pool} is a name of the login nodes"
            context.error(("pools", pool), message, "Choose another, such as compute", key=True)


def warnings(spec: ClusterSpec) -> tuple[str, ...]:
    """What a valid file means that its author may not expect, with what to write instead: one sentence for each."""
    users = len(spec.users.people)
    if users < 2 or spec.login.count or not spec.storage.home.enabled:  # noqa: PLR2004 - one user disturbs no other
        return ()
    return (
        f"{count(users, 'user')} log in to the controller, where the directory, the accounting and Slurm itself run: "
        "what one of them starts there can slow down or stop the cluster for all. With `login: {count: 1}` users log "
        "in to a host of their own, and only operators to the controller (docs/how-to/login-nodes.md)",
    )
