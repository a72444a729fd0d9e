"""The name of this host's node in the API of Kubernetes."""

from __future__ import annotations

import os
import re
from pathlib import Path

#: The arguments of this host's kubelet; its name is among them where it is not that of the host.
_ARGUMENTS = Path("/var/lib/kubelet/kubeadm-flags.env")
_OWN_NAME = re.compile(r"--hostname-override=(\S+)")


def registered_name() -> str:
    """The name of this host's node."""
    try:
        match = _OWN_NAME.search(_ARGUMENTS.read_text(encoding="utf-8"))
    except OSError:
        match = None
    return match[1].strip('"') if match else os.uname().nodename
