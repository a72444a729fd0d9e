"""The commands for the local cloud."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from gpucluster.cli.base import Context, cli, command, reporting

if TYPE_CHECKING:
    from gpucluster.localcloud.control import Status


@cli.group("local")
def local() -> None:
    """Start, stop and inspect the local cloud of this machine."""


@command("start", parent=local)
def local_start(context: Context) -> None:
    """Start the local cloud's API. apply does this itself."""
    with reporting(context) as shown:
        from gpucluster.localcloud import control
        from gpucluster.paths import local_cloud_home

        found = control.start(local_cloud_home(), shown)
        shown.result({"command": "local start", **_local_data(found)}, _local_text(found))


@command("stop", parent=local)
def local_stop(context: Context) -> None:
    """Stop the local cloud's API. Instances keep running."""
    with reporting(context) as shown:
        from gpucluster.localcloud import control
        from gpucluster.paths import local_cloud_home

        control.stop(local_cloud_home())
        shown.result({"command": "local stop"}, "the local cloud is stopped")


@command("status", parent=local)
def local_status(context: Context) -> None:
    """Show whether the local cloud runs, and its instances."""
    with reporting(context) as shown:
        from gpucluster.localcloud import control
        from gpucluster.paths import local_cloud_home

        found = control.status(local_cloud_home())
        shown.result({"command": "local status", **_local_data(found)}, _local_text(found))


def _local_data(found: Status) -> dict[str, Any]:
    from dataclasses import asdict

    return {**asdict(found), "home": str(found.home)}


def _local_text(found: Status) -> str:
    if not found.running:
        return f"the local cloud in {found.home} is stopped"
    instances = ", ".join(f"{count} {state.lower()}" for state, count in found.instances.items()) or "none"
    return f"the local cloud in {found.home} answers at {found.endpoint} (pid {found.pid}); instances: {instances}"
