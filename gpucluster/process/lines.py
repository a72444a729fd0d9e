"""Lines of a pipe, read so that the wait for one can be cancelled."""

from __future__ import annotations

import os
import select
from typing import IO

from gpucluster import cancellation


class PipeLines:
    """The lines that a program writes into a pipe. Nothing else may read from it, until the last line was asked for."""

    def __init__(self, pipe: IO[bytes]) -> None:
        self._descriptor = pipe.fileno()
        self._ready = select.poll()  # `select.select` has a limit for numbers of files
        self._ready.register(self._descriptor, select.POLLIN)
        self._read = bytearray()

    def readline(self) -> bytes:
        """The next line with its end; at the end of the output what is left, which may be empty.

        Raises:
            KeyboardInterrupt: the call of this thread was cancelled.
        """
        searched = 0
        while (end := self._read.find(b"\n", searched)) < 0:
            searched = len(self._read)
            self._wait()
            chunk = os.read(self._descriptor, 1 << 16)
            if not chunk:
                end = searched - 1
                break
            self._read += chunk
        line = bytes(self._read[: end + 1])
        del self._read[: end + 1]
        return line

    def _wait(self) -> None:
        while True:
            seconds = cancellation.step(None)
            if self._ready.poll(None if seconds is None else seconds * 1000):
                return
            cancellation.check()
