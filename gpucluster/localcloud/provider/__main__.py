"""The entry that Terraform starts: `python -m gpucluster.localcloud.provider`, or `main` without runpy."""

from __future__ import annotations

import os
import sys

from gpucluster.localcloud.provider import client


def _host(listener: int, folder: str, terraform: int) -> None:
    """Be the host. Until here Python may have run without its `site`, and so without installed packages."""
    if sys.flags.no_site:
        import site

        site.main()
    from gpucluster.localcloud.provider import shared

    shared.host(listener, folder, terraform)


def main() -> int:
    """Serve Terraform; print a message for every other caller."""
    if "TF_PLUGIN_MAGIC_COOKIE" not in os.environ:
        sys.stderr.write("This is a provider plugin. Terraform starts it; there is nothing to do by hand.\n")
        return 1
    return client.serve(_host)


if __name__ == "__main__":
    raise SystemExit(main())
