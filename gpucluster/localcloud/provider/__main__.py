"""The entry that Terraform starts: `python -m gpucluster.localcloud.provider`."""

from __future__ import annotations

import os
import sys

from gpucluster.localcloud.provider import shared


def _load() -> shared.Open:
    from gpucluster.localcloud.provider import plugin

    return plugin.opener()


def main() -> int:
    """Serve Terraform; print a message for every other caller."""
    if "TF_PLUGIN_MAGIC_COOKIE" not in os.environ:
        sys.stderr.write("This is a provider plugin. Terraform starts it; there is nothing to do by hand.\n")
        return 1
    return shared.serve(_load)


if __name__ == "__main__":
    raise SystemExit(main())
