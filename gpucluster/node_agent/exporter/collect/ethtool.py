"""Statistics of a network interface's driver, as `ethtool -S` asks the kernel for them. Needs no rights.

The structures are those of linux/ethtool.h.
"""

from __future__ import annotations

import array
import fcntl
import socket
import struct
from collections.abc import Sequence
from typing import Any, Callable

_SIOCETHTOOL = 0x8946
_GSTRINGS, _GSTATS, _GSSET_INFO = 0x1B, 0x1D, 0x37
_STATS_SET = 1
_NAME, _VALUE = 32, 8
_INTERFACE = 15
# The kernel writes as many values as there are when it is asked, not as many as there were when we asked for their
# number: a driver may add queues in between. So there is room for more of them.
_SPARE = 8192
_MOST = 65536

#: As fcntl.ioctl.
Ioctl = Callable[[Any, int, bytes], Any]


class Ethtool:
    """Asks for names and values of the statistics of interfaces.

    Args:
        inside: a socket, of any family, of the network namespace in which they are; None for our own namespace.
    """

    def __init__(self, ioctl: Ioctl = fcntl.ioctl, inside: socket.socket | None = None) -> None:
        self._ioctl = ioctl
        self._socket = inside or socket.socket(socket.AF_INET, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC)

    def through(self, inside: socket.socket) -> Ethtool:
        """The same for the interfaces of another network namespace. Who has the socket closes it."""
        return Ethtool(self._ioctl, inside)

    def count(self, interface: str) -> int:
        """How many statistics an interface has.

        Raises:
            OSError: there is no such interface, or its driver has none.
        """
        request = array.array("B", struct.pack("=IIQI", _GSSET_INFO, 0, 1 << _STATS_SET, 0))
        self._ask(interface, request)
        _command, _reserved, mask, count = struct.unpack_from("=IIQI", request)
        return min(int(count), _MOST) if mask else 0

    def names(self, interface: str, count: int) -> list[str]:
        """The names of the statistics, in the order of the values.

        Raises:
            OSError: as in `count`.
        """
        request = _room("=III", (_GSTRINGS, _STATS_SET, count), _NAME * (count + _SPARE))
        self._ask(interface, request)
        start = struct.calcsize("=III")
        fields = (request[start + _NAME * at : start + _NAME * (at + 1)].tobytes() for at in range(count))
        return [field.partition(b"\0")[0].decode(errors="replace").strip() for field in fields]

    def values(self, interface: str, count: int, places: Sequence[int]) -> list[int] | None:
        """The values at these places; None if there are no longer `count` of them.

        Raises:
            OSError: as in `count`.
        """
        request = _room("=II", (_GSTATS, count), _VALUE * (count + _SPARE))
        self._ask(interface, request)
        if struct.unpack_from("=II", request)[1] != count:
            return None
        start = struct.calcsize("=II")
        return [struct.unpack_from("=Q", request, start + _VALUE * place)[0] for place in places]

    def close(self) -> None:
        """Close the socket."""
        self._socket.close()

    def _ask(self, interface: str, request: array.array[int]) -> None:
        """The kernel writes its answer into the request."""
        address, _length = request.buffer_info()
        name = interface.encode(errors="surrogateescape")[:_INTERFACE]
        # struct ifreq: the name, and a pointer in a union of 24 bytes.
        self._ioctl(self._socket, _SIOCETHTOOL, struct.pack("=16sQ16x", name, address))


def _room(form: str, head: Sequence[int], more: int) -> array.array[int]:
    return array.array("B", struct.pack(form, *head) + bytes(more))
