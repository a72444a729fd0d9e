"""What runs in a pod of `verify`: prints what the pod has, answers others, and tries to reach them.

It is sent as text and runs with the Python of the node, so it takes no module of ours. It runs
with Python 3.6, which nodes of OKE may have: annotations are words.
"""

import fcntl
import json
import os
import socket
import struct
import sys
import threading

PORT = 7077
_ADDRESS = 0x8915
_SECONDS = 5.0


def interfaces() -> "dict[str, str]":
    """The IPv4 address of each interface but the loopback one, by its name."""
    addresses = {}
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as datagram:
        for _number, name in socket.if_nameindex():
            try:
                answer = fcntl.ioctl(datagram.fileno(), _ADDRESS, struct.pack("256s", name.encode()[:15]))
            except OSError:
                continue
            addresses[name] = socket.inet_ntoa(answer[20:24])
    addresses.pop("lo", None)
    return addresses


def _listed(place: str, start: str = "") -> "list[str]":
    try:
        return sorted(name for name in os.listdir(place) if name.startswith(start))
    except OSError:
        return []


def look() -> "dict[str, object]":
    """What the pod has: addresses, RDMA devices, and their files for programs."""
    return {
        "interfaces": interfaces(),
        "rdma": _listed("/sys/class/infiniband"),
        "verbs": _listed("/dev/infiniband", "uverbs"),
    }


def serve(port: int = PORT) -> None:
    """Send back what each caller sends, until the pod ends."""
    with socket.socket() as server:
        server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        server.bind(("", port))
        server.listen(64)
        while True:
            caller, _address = server.accept()
            threading.Thread(target=_echo, args=(caller,), daemon=True).start()


def _echo(caller: socket.socket) -> None:
    with caller:
        try:
            caller.settimeout(_SECONDS)
            caller.sendall(caller.recv(4096))
        except OSError:
            pass


def reach(address: str, source: str, port: int = PORT, seconds: float = _SECONDS) -> str:
    """Send a word from an address of this pod to another pod, and read it back; "" or what went wrong."""
    word = os.urandom(32)
    try:
        with socket.create_connection((address, port), seconds, (source, 0)) as call:
            call.sendall(word)
            got = b""
            while len(got) < len(word):
                more = call.recv(4096)
                if not more:
                    return "it closed the connection"
                got += more
            return "" if got == word else "it answers with other data"
    except OSError as error:
        return str(error) or type(error).__name__


def main(argv: "list[str]") -> None:
    """`serve`, `wait`, `look`, or `reach` with a list of [name of the interface, address, own address] as JSON."""
    if argv[0] == "serve":
        serve()
    elif argv[0] == "wait":
        threading.Event().wait()
    elif argv[0] == "look":
        sys.stdout.write(json.dumps(look()))
    else:
        calls = [(name, reach(address, source)) for name, address, source in json.loads(argv[1])]
        sys.stdout.write(json.dumps([[name, error] for name, error in calls]))


if __name__ == "__main__":
    main(sys.argv[1:])
