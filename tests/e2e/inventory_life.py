"""What each inventory of the README goes through in a test, whatever its scheduler."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext

from tests.e2e.site_harness import Site, all_pass, containers, networks

Held = Callable[[Site, str], AbstractContextManager[None]]


def build_verify_and_remove(site: Site, hosts: int, name: str, held: Held = lambda _site, _what: nullcontext()) -> None:
    """Build the cluster of a site, verify it, see that nothing is left to do, and remove all of it.

    Args:
        hosts: how many containers it has.
        name: of the inventory.
        held: within what `apply` and `verify` run: `budget.held`.
    """
    with held(site, f"{name}: first apply"):
        result = site.good("apply")
    assert all_pass(result), result["checks"]
    assert len(containers(site.home)) == hosts
    with held(site, f"{name}: verify"):
        assert all_pass(site.good("verify"))
    site.require_order(*site.host_names)
    code, events = site.run("plan", "--detailed-exitcode")
    assert code == 0, events[-1]
    site.good("destroy", "--delete-data")
    assert containers(site.home) == []
    assert networks(site.home) == []
