"""The commands about release files: what a cluster needs, and a directory that has it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from gpucluster.cli.base import Context, cli, command, reporting

if TYPE_CHECKING:
    from gpucluster.artifacts.catalogue import Artifact
    from gpucluster.spec import ClusterSpec


@cli.group("software")
def software() -> None:
    """Release files that hosts get (Enroot, Pyxis, nerdctl), and mirrors of them."""


def _wanted(spec: ClusterSpec) -> tuple[Artifact, ...]:
    from gpucluster.artifacts.catalogue import wanted_by

    return wanted_by(spec, hardware_emulated=spec.cloud.traits.hardware_emulated)


@command("list", parent=software)
def software_list(context: Context) -> None:
    """List the release files that this cluster needs, and whether they can be had. Fetches nothing."""
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
    help="Also take files whose checksum nobody says, as they come (not by plain http), and note theirs. Compare them.",
)  # fmt: skip
def software_fetch(context: Context, directory: str, trust_download: bool) -> None:
    """Fill DIRECTORY with the release files that this cluster needs, so that it can serve as software.mirror."""
    with reporting(context) as shown:
        from pathlib import Path

        from gpucluster.artifacts.releases import fetch

        spec = context.spec()
        mirror = spec.software.mirror_location
        taken = fetch(_wanted(spec), mirror, Path(directory), trust_download=trust_download, on_event=shown)
        lines = [f"{directory} has {len(taken)} release files and SHA256SUMS"]
        trusted = [one for one in taken if one.checksum == "unknown"]
        if trusted:
            lines.append("Nobody says what the checksums of these must be; compare them with what their projects say:")
            lines += [f"  {one.sha256}  {one.artifact.file}  ({one.artifact.url})" for one in trusted]
        # In cluster.yml it is relative to that file, wherever this was typed.
        place, beside = Path(directory).resolve(), spec.file.resolve().parent
        usable = str(place.relative_to(beside) if place.is_relative_to(beside) else place)
        if taken:
            lines.append(f"Use it: `mirror: {usable}` under `software:` of {spec.file}, or serve it by https")
        files = [one.to_dict() for one in taken]
        result = {"command": "software fetch", "directory": directory, "mirror": usable, "files": files}
        shown.result(result, "\n".join(lines))
