"""The commands for release files: what a cluster needs, the lock file, and a directory that holds the files."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING

import click

from gpucluster.cli.base import PROVIDER, Context, cluster_of, command, command_group, reporting
from gpucluster.text import count

if TYPE_CHECKING:
    from gpucluster.artifacts.catalogue import Artifact
    from gpucluster.spec import ClusterSpec


@command_group("software")
def software() -> None:
    """List, lock and fetch the release files that hosts get.

    Such as those of Enroot, Pyxis and nerdctl.
    """


def _needed_files(spec: ClusterSpec) -> tuple[Artifact, ...]:
    from gpucluster.artifacts.releases import needed_by

    return needed_by(spec, hardware_emulated=spec.cloud.traits.hardware_emulated)


@command("list", parent=software)
def software_list(context: Context) -> None:
    """List the needed release files, and which are available.

    Fetches nothing, and needs no network: without it, files that are not on this machine are `unknown`.
    """
    with reporting(context) as reporter:
        from gpucluster.artifacts.releases import survey
        from gpucluster.cli.output import table

        spec = context.spec()
        statuses = survey(_needed_files(spec), spec.software.mirror_location, reporter, partly=True)
        rows = [
            [each.artifact.component, each.artifact.file, each.state, each.checksum, each.artifact.url]
            for each in statuses
        ]
        text = table(rows, ["COMPONENT", "FILE", "STATE", "CHECKSUM", "URL"]) if rows else "no release file is needed"
        mirror = spec.software.mirror_location
        result = {"command": "software list", "mirror": mirror, "files": [each.to_dict() for each in statuses]}
        reporter.result(result, text)


@command("lock", parent=software)
@click.option("--upgrade", is_flag=True, help="Find all checksums again, also those that the lock file has.")
def software_lock(context: Context, upgrade: bool) -> None:
    """Record the checksums of the release files in software.lock.

    The lock file is beside the cluster file; keep both in Git. It has the files whose checksums neither the cluster
    file nor gpucluster itself has. Every later run takes only files that are equal to these.
    """
    with reporting(context) as reporter:
        from gpucluster.artifacts import lock_file
        from gpucluster.artifacts.releases import lock

        spec = context.spec()
        hardware_emulated = spec.cloud.traits.hardware_emulated
        locked, changes = lock(spec, hardware_emulated=hardware_emulated, upgrade=upgrade, on_event=reporter)
        file = lock_file.path_of(spec.file)
        lines = [f"{file.name} has {count(len(locked), 'release file')}" if locked else "no file has to be locked"]
        for change in changes:
            if change.after is None:
                lines.append(f"  removed: {change.file}")
            elif change.before is None:
                lines.append(f"  added: {change.file}  {change.after.sha256}  ({change.after.source})")
            else:
                lines.append(f"  changed: {change.file}  {change.before.sha256} -> {change.after.sha256}")
        if any(change.after and change.after.source.startswith("downloaded") for change in changes):
            lines.append("What is marked `downloaded` was taken as it came; compare it with another source if you can")
        if changes:
            lines.append(f"Commit {file}")
        files = {each.artifact.file: each.sha256 for each in locked}
        result = {
            "command": "software lock", "lock_file": str(file), "files": files,
            "changes": [asdict(change) for change in changes],
        }  # fmt: skip
        reporter.result(result, "\n".join(lines))


@command("lock-provider", parent=software)
@PROVIDER
def software_lock_provider(context: Context, provider: str) -> None:
    """Record those of Terraform's provider in terraform.lock.hcl.

    It is what the last run on this machine recorded. The file is beside the cluster file; keep both in Git. Every later
    run takes only this version of the provider, with these checksums.
    """
    with cluster_of(context, provider) as (cluster, reporter):
        file, changed = cluster.state.lock_provider()
        text = f"Commit {file}" if changed else f"{file.name} has it already"
        reporter.result({"command": "software lock-provider", "lock_file": str(file), "changed": changed}, text)


@command("fetch", parent=software)
@click.argument("directory", type=click.Path(file_okay=False))
@click.option(
    "--trust-download", is_flag=True,
    help="Also take files without a known checksum (not by plain http), and record theirs. Compare them.",
)  # fmt: skip
def software_fetch(context: Context, directory: str, trust_download: bool) -> None:
    """Fetch the needed release files into DIRECTORY.

    The directory can then be software.mirror in the cluster file.
    """
    with reporting(context) as reporter:
        from pathlib import Path

        from gpucluster.artifacts.releases import fetch

        spec = context.spec()
        mirror = spec.software.mirror_location
        taken = fetch(_needed_files(spec), mirror, Path(directory), trust_download=trust_download, on_event=reporter)
        lines = [f"{directory} has {count(len(taken), 'release file')} and SHA256SUMS"]
        trusted = [each for each in taken if each.checksum == "unknown"]
        if trusted:
            lines.append("The checksums of these files are not known; compare them with what their projects publish:")
            lines += [f"  {each.sha256}  {each.artifact.file}  ({each.artifact.url})" for each in trusted]
        # In cluster.yml a path is relative to that file, not to the current folder.
        place, beside = Path(directory).resolve(), spec.file.resolve().parent
        usable = str(place.relative_to(beside) if place.is_relative_to(beside) else place)
        if taken:
            lines.append(f"Use it: `mirror: {usable}` under `software:` of {spec.file}, or serve it by https")
        files = [each.to_dict() for each in taken]
        result = {"command": "software fetch", "directory": directory, "mirror": usable, "files": files}
        reporter.result(result, "\n".join(lines))
