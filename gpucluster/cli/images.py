"""The commands for images: baked images, which nodes boot from, and container images, which jobs run in."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import click

from gpucluster.cli import completion
from gpucluster.cli.base import PROVIDER, Context, cluster_of, command, command_group
from gpucluster.cli.summaries import summary
from gpucluster.text import printable

if TYPE_CHECKING:
    from gpucluster.operations.container_images import ContainerImage


@command_group("image")
def image() -> None:
    """Manage baked images, and container images of jobs."""


@command("bake", parent=image)
@click.argument("pool", shell_complete=completion.pools)
@PROVIDER
def image_bake(context: Context, pool: str, provider: str) -> None:
    """Bake an image that the elastic nodes of POOL boot from."""
    with cluster_of(context, provider) as (cluster, reporter):
        result = cluster.images.bake(pool)
        reporter.result(result.to_dict(), summary(result))


@command("import", parent=image)
@click.argument("uri")
@click.option("--pool", help="Pool of the job that imports it. Default: the first pool of the default partition.")
@click.option("--user", help="Owner of the job and of the registry credentials. Default: the first of users.people.")
@click.option("--name", help="Name of the image. Default: made of its address.")
@click.option("--force", is_flag=True, help="Import it again if there is one of this name.")
def image_import(context: Context, uri: str, pool: str | None, user: str | None, name: str | None, force: bool) -> None:
    """Import a container image once, for all jobs.

    URI is docker://REGISTRY#NAME:TAG.
    """
    with cluster_of(context) as (cluster, reporter):
        result = cluster.container_images.import_uri(uri, pool=pool, user=user, name=name, force=force)
        imported = result.image
        what = "is imported" if result.changed else "exists already"
        text = f"{imported.name} {what}: {_size(imported.size)}\nNext: srun --container-image={imported.path} COMMAND"
        reporter.result({"command": "image import", **result.to_dict()}, text)


@command("list", parent=image)
def image_list(context: Context) -> None:
    """List the baked images and the container images."""
    from gpucluster.cli.output import table

    with cluster_of(context) as (cluster, reporter):
        images = cluster.images.list()
        rows = [
            [each.pool, each.name, each.state, each.fingerprint, f"{each.created_at:%Y-%m-%d %H:%M}"] for each in images
        ]
        text = table(rows, ["POOL", "IMAGE", "STATE", "FINGERPRINT", "MADE"]) if rows else "there are no baked images"
        containers = cluster.container_images
        container_images = containers.list() if containers.supported else ()
        if containers.supported:
            text += "\n\n" + (
                _container_table(container_images) if container_images else "there are no container images"
            )
        data = {
            "images": [each.to_dict() for each in images],
            "container_images": [container_image.to_dict() for container_image in container_images],
        }
        reporter.result({"command": "image list", **data}, text)


@command("remove", parent=image)
@click.argument("name")
def image_remove(context: Context, name: str) -> None:
    """Remove a container image. Job steps that have it mounted lose it."""
    with cluster_of(context) as (cluster, reporter):
        cluster.container_images.remove(name)
        reporter.result({"command": "image remove", "name": name}, f"{name} is removed")


def _container_table(images: Sequence[ContainerImage]) -> str:
    from datetime import UTC, datetime

    from gpucluster.cli.output import table

    now = datetime.now(UTC)
    rows = [
        [printable(each.name), _size(each.size), _age((now - each.created_at).total_seconds()), printable(each.user)]
        for each in images
    ]
    return table(rows, ["CONTAINER IMAGE", "SIZE", "AGE", "IMPORTED BY"])


def _size(size: float) -> str:
    """A number of bytes, readable: `512 B`, `1.4 GB`."""
    step = 1000
    for unit in ("B", "kB", "MB", "GB"):
        if size < step:
            return f"{size:.0f} {unit}" if unit == "B" else f"{size:.1f} {unit}"
        size /= step
    return f"{size:.1f} TB"


def _age(seconds: float) -> str:
    """How long ago, readable: `2 h`, `3 d`."""
    for unit, length in (("d", 86400), ("h", 3600), ("min", 60)):
        if seconds >= length:
            return f"{seconds // length:.0f} {unit}"
    return "now"
