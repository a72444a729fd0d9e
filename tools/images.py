"""Make the base images of the local cloud that tests boot, where they are not in Podman's storage yet.

    python -m tools.images

`make test` does so before the first test. It is the same as what the first `apply` on a machine does.
"""

from __future__ import annotations

import sys

from gpucluster.errors import GpuClusterError
from gpucluster.events import Event
from gpucluster.localcloud.image.base_image import ensure_image
from gpucluster.localcloud.image.contents import all_contents, folder_of
from gpucluster.paths import local_cloud_home


def main() -> int:
    """Make the missing ones. Returns 1 if one could not be made, and reports why."""
    home = local_cloud_home()
    for contents in all_contents(folder_of(home)):
        try:
            ensure_image(home, _say, contents)
        except GpuClusterError as error:
            print(f"the image {contents.label} could not be made: {error}", file=sys.stderr)
            return 1
    return 0


def _say(event: Event) -> None:
    print(f"{event.name}: {event.status} {event.message}", flush=True)


if __name__ == "__main__":
    sys.exit(main())
