"""The key of new elastic nodes on the controller: the join service makes it, and `join_key` rotates it."""

from __future__ import annotations

from pathlib import Path

#: Of the join service, for root alone.
FOLDER = Path("/var/lib/gpucluster-join")
#: The private key, in that folder; and its public half, which the autoscaler gives to instances.
KEY = Path("ssh/id_ed25519")
PUBLIC = Path("/run/gpucluster-join/id_ed25519.pub")
COMMENT = "gpucluster-join"
#: Seconds that an instance may take from its request until it runs, and then until it is configured; unless
#: `times.launch_deadline` of the autoscaler's configuration has another number.
LAUNCH_SECONDS = 1500.0


def former(private: Path) -> Path:
    """The private key before, while nodes may need it that were launched with it."""
    return private.with_name(f"{private.name}.former")
