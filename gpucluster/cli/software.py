"""The commands for release files: what a cluster needs, and a directory that holds it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from gpucluster.cli.base import Context, cli, command, reporting
from gpucluster.text import count

if TYPE_CHECKING:
    from gpucluster.artifacts.catalogue import Artifact
    from gpucluster.spec import ClusterSpec


@cli.group("software")
def software() -> None:
    """List and fetch the release files that hosts get (Enroot, Pyxis, nerdctl)."""


def _wanted(spec: ClusterSpec) -> tuple[Artifact, ...]:
    from gpucluster.artifacts.catalogue import wanted_by

    return wanted_by(spec, hardware_emulated=spec.cloud.traits.hardware_emulated)


@command("list", parent=software)
def software_list(context: Context) -> None:
    """List the release files that this cluster needs, and whether they are available. Fetches nothing."""
    with reporting(context) as shown:
        from gpucluster.artifacts.releases import survey
        from gpucluster.cli.output import table

        spec = context.spec()
        seen = survey(_wanted(spec), spec.software.mirror_location, shown)
        rows = [[one.artifact.component, one.artifact.file, one.state, one.checksum, one.artifact.url] for one in seen]
        text = table(rows, ["COMPONENT", "FILE", "STATE", "CHECKSUM", "URL"]) if rows else "no release file is needed"
        mirror = spec.software.mirror_location
        result = {"command": "software list", "mirror": mirror, "files": [one.to_dict() for one in seen]}
        shown.result(result, text)


@command("fetch", parent=software)
@click.argument("directory", type=click.Path(file_okay=False))
@click.option(
    "--trust-download", is_flag=True,
    help="Also take files without a known checksum (not by plain http), and record theirs. Compare them.",
)  # fmt: skip
def software_fetch(context: Context, directory: str, trust_download: bool) -> None:
    """Fetch the release files that this cluster needs into DIRECTORY, which can then be its software.mirror."""
    with reporting(context) as shown:
        from pathlib import Path

        from gpucluster.artifacts.releases import fetch

        spec = context.spec()
        mirror = spec.software.mirror_location
        taken = fetch(_wanted(spec), mirror, Path(directory), trust_download=trust_download, on_event=shown)
        lines = [f"{directory} has {count(len(taken), 'release file')} and SHA256SUMS"]
        trusted = [one for one in taken if one.checksum == "unknown"]
        if trusted:
            lines.append("The checksums of these files are not known; compare them with what their projects publish:")
            lines += [f"  {one.sha256}  {one.artifact.file}  ({one.artifact.url})" for one in trusted]
        # In cluster.yml a path is relative to that file, not to the present folder.
        place, beside = Path(directory).resolve(), spec.file.resolve().parent
        usable = str(place.relative_to(beside) if place.is_relative_to(beside) else place)
        if taken:
            lines.append(f"Use it: `mirror: {usable}` under `software:` of {spec.file}, or serve it by https")
        files = [one.to_dict() for one in taken]
        result = {"command": "software fetch", "directory": directory, "mirror": usable, "files": files}
        shown.result(result, "\n".join(lines))
