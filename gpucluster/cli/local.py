"""The commands for the local cloud."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import click

from gpucluster.cli.base import Context, command, command_group, reporting

if TYPE_CHECKING:
    from gpucluster.localcloud.control import LocalCloudStatus


@command_group("local")
def local() -> None:
    """Start, stop and inspect the local cloud of this machine."""


@command("start", parent=local)
def local_start(context: Context) -> None:
    """Start the local cloud's API. apply does this itself."""
    with reporting(context) as reporter:
        from gpucluster.localcloud import control
        from gpucluster.paths import local_cloud_home

        status = control.start(local_cloud_home(), reporter)
        reporter.result({"command": "local start", **status.to_dict()}, _text(status))


@command("stop", parent=local)
def local_stop(context: Context) -> None:
    """Stop the local cloud's API. Instances keep running."""
    with reporting(context) as reporter:
        from gpucluster.localcloud import control
        from gpucluster.paths import local_cloud_home

        control.stop(local_cloud_home())
        reporter.result({"command": "local stop"}, "the local cloud is stopped")


@command("status", parent=local)
def local_status(context: Context) -> None:
    """Show whether the local cloud runs, and its instances."""
    with reporting(context) as reporter:
        from gpucluster.localcloud import control
        from gpucluster.paths import local_cloud_home

        status = control.status(local_cloud_home())
        reporter.result({"command": "local status", **status.to_dict()}, _text(status))


@command("env", parent=local)
@click.option(
    "--provider", type=click.Choice(["registry", "bundled"]), default="registry",
    help="What plain Terraform takes for oracle/oci: the real provider, or ours.",
)  # fmt: skip
@click.option("--unset", is_flag=True, help="Print what removes the variables from the shell again.")
def local_env(context: Context, provider: str, unset: bool) -> None:
    """Print the variables with which OCI's own tools work here.

    In a shell: eval "$(gpucluster local env)". Then oci-cli, the SDK and plain Terraform work with the local cloud.
    """
    with reporting(context) as reporter:
        from gpucluster.cloud.providers import shell
        from gpucluster.paths import local_cloud_home

        if unset:
            variables = shell.without_shell_environment()
        else:
            variables = shell.shell_environment(local_cloud_home(), os.environ, bundled=provider == "bundled")
        reporter.result({"command": "local env", "variables": variables}, shell.shell_text(variables), verbatim=True)


def _text(status: LocalCloudStatus) -> str:
    if not status.running:
        return f"the local cloud in {status.home} is stopped"
    instances = ", ".join(f"{count} {state.lower()}" for state, count in status.instances.items()) or "none"
    return f"the local cloud in {status.home} answers at {status.endpoint} (pid {status.pid}); instances: {instances}"
