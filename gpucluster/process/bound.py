"""Commands that end with the process that starts them, however it ends."""

from __future__ import annotations

import os
from collections.abc import Sequence

# Whose parent has ended before the kernel knew of the bond gets no signal any more, and has another parent.
_IF_THE_PARENT_LIVES = '[ "$PPID" = "$0" ] || exit 1; exec "$@"'


def to_this_process(argv: Sequence[str]) -> list[str]:
    """A command that is killed when this process ends, also where that happens before the command has begun."""
    return ["setpriv", "--pdeathsig=KILL", "--", "sh", "-c", _IF_THE_PARENT_LIVES, str(os.getpid()), *argv]
