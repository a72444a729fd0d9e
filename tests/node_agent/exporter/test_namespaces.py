"""Network namespaces that pods have: they are found, and /sys of each is read without entering it.

Real: the kernel's network namespaces, sysfs of each, the socket and the passed folders, the program. The class of the
devices is `net`: both classes have the tag of a network namespace, but this does not prove the driver's part, a device
that moves. Where a test has RDMA devices, they are planted trees of files, passed by a socket of the test.
"""

from __future__ import annotations

import fcntl
import os
import socket
import subprocess
import sys
import tempfile
import threading
import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Callable

import pytest

from gpucluster.node_agent.exporter import namespaces
from gpucluster.node_agent.exporter.collect import Place, Spec
from gpucluster.node_agent.exporter.collect import network as network_module
from gpucluster.node_agent.exporter.collect.ethtool import Ethtool
from gpucluster.node_agent.exporter.collect.network import NetworkCollector
from gpucluster.node_agent.exporter.collect.rdma import Rdma
from gpucluster.node_agent.exporter.exposition import page
from gpucluster.node_agent.exporter.namespaces import Namespaces, find
from gpucluster.node_agent.exporter.workers import Workers
from tests.node_agent.exporter.collect.test_network import KernelDouble
from tests.node_agent.exporter.trees import IB, MLX5, port
from tests.node_agent.exposition import Series, having, of, series
from tests.waiting import PATIENCE_S, wait_for


def _without_ctypes() -> str:
    # The oldest Python is unpacked without the libraries around it.
    try:
        import ctypes  # noqa: F401
    except ImportError as error:
        return str(error)
    return ""


AS_ROOT = pytest.mark.skipif(
    os.geteuid() != 0 or bool(_without_ctypes()), reason=_without_ctypes() or "makes network namespaces"
)
OWN = "net:[4026531840]"
MOUNTS = r"""
24 1 0:22 / /sys rw,nosuid - sysfs sysfs rw
541 30 0:4 net:[4026532281] /run/netns/cni-5f1f rw shared:285 - nsfs nsfs rw
542 24 0:4 net:[4026532281] /run/again rw - nsfs nsfs rw
543 30 0:4 net:[4026531840] /run/docker/netns/default rw shared:3 master:1 - nsfs nsfs rw
544 30 0:4 mnt:[4026532290] /run/snapd/ns/lxd.mnt rw - nsfs nsfs rw
545 30 0:4 net:[4026532177] /run/with\040blank rw shared:287 - nsfs nsfs rw
546 30 0:40 net:[1] /run/not - tmpfs nsfs rw
"""


def test_namespaces_are_found_by_the_mounts_that_keep_them_each_once_and_not_our_own() -> None:
    assert find(MOUNTS, OWN) == {"net:[4026532177]": "/run/with blank", "net:[4026532281]": "/run/netns/cni-5f1f"}
    assert find("", OWN) == {}


def test_there_is_an_upper_limit() -> None:
    many = "\n".join(f"9 9 0:4 net:[{10000 + number}] /run/netns/{number} rw - nsfs nsfs rw" for number in range(2000))
    assert len(find(many, OWN)) == namespaces.MOST


# --- the collector, with planted trees -----


@contextmanager
def answering(answer: Callable[[socket.socket], object]) -> Iterator[str]:
    """The address of a socket whose connections are given to this, one after the other, and then end."""
    # The kernel takes 107 characters.
    with tempfile.TemporaryDirectory() as short, socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
        address = f"{short}/socket"
        listener.bind(address)
        listener.listen()

        def serve() -> None:
            while True:
                try:
                    asker, _ = listener.accept()
                except OSError:
                    return
                with asker:
                    answer(asker)

        thread = threading.Thread(target=serve)
        thread.start()
        try:
            yield address
        finally:
            listener.shutdown(socket.SHUT_RDWR)
            thread.join()


@contextmanager
def passing(folders: Mapping[str, Path], *, sockets: bool = False) -> Iterator[str]:
    """A double of `give`: it passes these folders, and neither looks for namespaces nor mounts anything.

    Args:
        sockets: with each one a socket, which is of our own namespace.
    """

    def answer(asker: socket.socket) -> None:
        for name, folder in folders.items():
            descriptor = os.open(folder, os.O_RDONLY)
            with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as inside:
                socket.send_fds(asker, [name.encode()], [descriptor, *([inside.fileno()] if sockets else [])])
            os.close(descriptor)

    with answering(answer) as address:
        yield address


def planted_proc(folder: Path, *names: str) -> str:
    """A /proc in which mounts keep these namespaces. Its folder of open files is this process's."""
    proc = folder / "proc"
    (proc / "self/ns").mkdir(parents=True, exist_ok=True)
    lines = [f"9 9 0:4 {name} /run/netns/{number} rw - nsfs nsfs rw\n" for number, name in enumerate(names)]
    (proc / "self/mountinfo").write_text("".join(lines))
    if not (proc / "self/fd").exists():
        (proc / "self/ns/net").symlink_to(OWN)
        (proc / "self/fd").symlink_to("/proc/self/fd")
    return str(proc)


def read(collector: Rdma) -> Series:
    return series(page(line for subject in collector.subjects() for line in collector.samples(subject)))


def devices(found: Series) -> set[str]:
    return {dict(labels)["device"] for labels in having(found, "gpucluster_rdma_counter_total")}


@pytest.fixture
def host(tmp_path: Path) -> Path:
    port(tmp_path / "host", "mlx5_0", IB, MLX5)
    return tmp_path / "host"


@pytest.fixture
def pod(tmp_path: Path) -> Path:
    (tmp_path / "pod/class/net/lo").mkdir(parents=True)
    return tmp_path / "pod"


def test_the_series_of_a_device_go_on_in_a_pod_and_back_with_the_same_labels(
    tmp_path: Path, host: Path, pod: Path
) -> None:
    moving = port(host, "mlx5_1", IB, MLX5).parents[1]
    name = "net:[4026532281]"
    with passing({name: pod}) as address:
        rdma = Rdma(Place(str(host), planted_proc(tmp_path), namespaces=address))
        before = read(rdma)
        (pod / "class/infiniband").mkdir()
        moving.rename(pod / "class/infiniband/mlx5_1")
        planted_proc(tmp_path, name)
        during = read(rdma)
        (pod / "class/infiniband/mlx5_1").rename(moving)
        after = read(rdma)
        rdma.close()
    assert devices(before) == {"mlx5_0", "mlx5_1"}
    # Each series, with each label and each value.
    assert before == during == after


def test_namespaces_that_share_devices_give_each_once_and_the_hosts(tmp_path: Path, host: Path, pod: Path) -> None:
    (port(pod, "mlx5_0", IB, MLX5) / "counters/link_downed").write_text("999\n")
    with passing({"net:[7]": pod}) as address:
        rdma = Rdma(Place(str(host), planted_proc(tmp_path, "net:[7]"), namespaces=address))
        assert len(rdma.subjects()) == 2
        found = read(rdma)
        rdma.close()
    value = of(found, "gpucluster_rdma_counter_total", device="mlx5_0", port="1", counter="link_downed")
    assert value == IB.index("link_downed")


def test_nothing_is_asked_while_the_namespaces_are_the_same(
    tmp_path: Path, pod: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[Namespaces] = []
    real = Namespaces._ask

    def ask(held: Namespaces) -> None:
        asked.append(held)
        real(held)

    monkeypatch.setattr(Namespaces, "_ask", ask)
    with passing({"net:[7]": pod}) as address:
        held = Namespaces(address, planted_proc(tmp_path, "net:[7]"))
        for _ in range(3):
            assert list(held.folders()) == ["net:[7]"]
        assert len(asked) == 1
        # Its number may be that of another one now: one that has ended has no interface.
        (pod / "class/net/lo").rmdir()
        held.folders()
        assert len(asked) == 2
        planted_proc(tmp_path)
        assert held.folders() == {}
        held.close()


def test_an_answer_that_comes_after_a_look_is_read_by_a_later_one(
    tmp_path: Path, pod: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(namespaces, "SECONDS", 0.05)
    started, asked = threading.Event(), []

    def answer(asker: socket.socket) -> None:
        asked.append(1)
        started.wait()
        folder = os.open(pod, os.O_RDONLY)
        socket.send_fds(asker, [b"net:[7]"], [folder])
        os.close(folder)

    with answering(answer) as address:
        held = Namespaces(address, planted_proc(tmp_path, "net:[7]"))
        assert held.folders() == {}
        assert held.missing() == ["net:[7]"]
        assert held.folders() == {}
        started.set()
        wait_for("the answer is read", held.folders)
        assert held.missing() == []
        assert asked == [1]
        held.close()


def test_a_namespace_that_cannot_be_read_makes_the_collector_incomplete_and_costs_nothing_else(
    tmp_path: Path, host: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    place = Place(str(host), planted_proc(tmp_path, "net:[7]", "net:[8]"), namespaces=str(tmp_path / "absent"))
    workers = Workers({"rdma": Spec(Rdma, 10 * PATIENCE_S, 8192)}, place)
    found = [series(page(workers.collect())) for _ in range(2)][-1]
    workers.close()
    assert devices(found) == {"mlx5_0"}
    assert of(found, "gpucluster_exporter_collector_up", collector="rdma") == 0
    assert capfd.readouterr().err == "network namespaces: OSError: 2 could not be read, such as net:[7]\n"


def test_a_namespace_that_comes_or_goes_during_a_scrape_is_not_a_fault(tmp_path: Path) -> None:
    held = Namespaces(str(tmp_path / "absent"), planted_proc(tmp_path, "net:[7]", "net:[8]"))
    held.folders()
    planted_proc(tmp_path, "net:[8]", "net:[9]")
    assert held.missing() == ["net:[8]"]


def test_without_a_socket_there_are_no_namespaces_and_nothing_is_missing(tmp_path: Path, host: Path) -> None:
    rdma = Rdma(Place(str(host), str(tmp_path / "no-proc")))
    assert devices(read(rdma)) == {"mlx5_0"}


# --- the program, with namespaces of the kernel -----


@pytest.fixture
def namespace() -> Iterator[str]:
    """The path of a network namespace with an interface of its own, which a mount keeps as containerd does."""
    name = f"gpucluster-{uuid.uuid4().hex[:8]}"
    subprocess.run(["ip", "netns", "add", name], check=True)
    try:
        add = ["ip", "-n", name, "link", "add", "moved0", "type", "veth", "peer", "name", "moved1"]
        subprocess.run(add, check=True)
        yield f"/run/netns/{name}"
    finally:
        subprocess.run(["ip", "netns", "delete", name], check=False, capture_output=True)


@contextmanager
def activated() -> Iterator[str]:
    """A socket that starts the program for each question, as systemd does with Accept=yes."""

    def answer(asker: socket.socket) -> None:
        words = [sys.executable, "-m", "gpucluster.node_agent", "exporter", "namespaces"]
        subprocess.run(words, stdin=asker.fileno(), check=True)

    with answering(answer) as address:
        yield address


@AS_ROOT
def test_sys_of_a_namespace_shows_what_moved_there_and_is_read_only(
    namespace: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Python starts slowly while other tests run.
    monkeypatch.setattr(namespaces, "SECONDS", PATIENCE_S)
    name = f"net:[{os.stat(namespace).st_ino}]"
    mounts = _mounts_of_sys()
    with activated() as address:
        held = Namespaces(address)
        folder = held.folders()[name]
        assert {"lo", "moved0", "moved1"} == set(os.listdir(f"{folder}/class/net"))
        assert not os.path.exists("/sys/class/net/moved0")
        # A device's folder lies outside of the class: the link leads to it.
        assert Path(f"{folder}/class/net/moved0/mtu").read_text() == "1500\n"
        assert os.statvfs(folder).f_flag & os.ST_RDONLY
        # One that moves is there at once, and what is held shows it.
        subprocess.run(["ip", "-n", os.path.basename(namespace), "link", "delete", "moved0"], check=True)
        assert os.listdir(f"{folder}/class/net") == ["lo"]
        assert _mounts_of_sys() == mounts, "no mount is left, here or anywhere"
        subprocess.run(["ip", "netns", "delete", os.path.basename(namespace)], check=True)
        # The kernel ends it a moment later: what is held open does not keep it.
        wait_for("the namespace is gone", lambda: not os.listdir(f"{folder}/class/net"))
        assert name not in held.folders()
        held.close()


def _mounts_of_sys() -> list[str]:
    """The mounts of this kind: others come and go with what else this machine does."""
    mounts = Path("/proc/self/mountinfo").read_text().splitlines()
    return [line for line in mounts if " - sysfs " in line]


@AS_ROOT
def test_who_asks_needs_no_right(namespace: str) -> None:
    name = f"net:[{os.stat(namespace).st_ino}]"
    ask = (
        "import os, sys\n"
        "from gpucluster.node_agent.exporter import namespaces\n"
        "os.setgid(65534); os.setuid(65534)\n"
        f"namespaces.SECONDS = {PATIENCE_S}\n"
        "held = namespaces.Namespaces(sys.argv[1])\n"
        "print(open(held.folders()[sys.argv[2]] + '/class/net/moved0/mtu').read(), held.missing())"
    )
    with activated() as address:
        os.chmod(os.path.dirname(address), 0o755)
        os.chmod(address, 0o666)
        said = subprocess.run([sys.executable, "-c", ask, address, name], text=True, capture_output=True, check=False)
    assert said.stdout.split() == ["1500", "[]"], said.stderr


# --- statistics of drivers, which a socket of the namespace gives -----


def moved(sysfs: str) -> dict[str, str]:
    """In place of `cards`: a veth device has no card, and a driver with statistics."""
    names = os.listdir(f"{sysfs}/class/net")
    return {name: "0000:0c:00.0" for name in names if name.startswith("moved")} if sysfs != "/sys" else {}


def statistics(network: NetworkCollector) -> dict[tuple[str, str], dict[str, float]]:
    """By interface and place of the card, its statistics."""
    text = page(line for subject in network.subjects() for line in network.samples(subject))
    found: dict[tuple[str, str], dict[str, float]] = {}
    for labels, value in having(series(text), "gpucluster_network_counter_total").items():
        known = dict(labels)
        found.setdefault((known["interface"], known["pci"]), {})[known["counter"]] = value
    return found


def ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True)


@AS_ROOT
def test_statistics_of_a_driver_go_on_in_a_namespace_and_do_not_keep_it(
    namespace: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(namespaces, "SECONDS", PATIENCE_S)
    # All statistics of veth: it counts none of those that are kept.
    monkeypatch.setattr(network_module, "chosen", lambda names: list(range(len(names))))
    short, name = os.path.basename(namespace), f"net:[{os.stat(namespace).st_ino}]"
    with activated() as address:
        network = NetworkCollector(Place(namespaces=address), places=moved)
        found = statistics(network)
        assert set(found) == {("moved0", "0000:0c:00.0"), ("moved1", "0000:0c:00.0")}
        assert found["moved0", "0000:0c:00.0"]["peer_ifindex"] > 0
        # One that comes later than its namespace, as the interfaces of a pod do.
        ip("-n", short, "link", "delete", "moved0")
        assert statistics(network) == {}
        assert descriptors_of(name) == 0, "no socket keeps a namespace in which nothing is read"
        ip("-n", short, "link", "add", "moved2", "type", "veth", "peer", "name", "moved3")
        assert {interface for interface, _pci in statistics(network)} == {"moved2", "moved3"}
        assert descriptors_of(name) == 1
        # No program reads now. A socket that stayed open would keep the namespace, and the interfaces of its pod.
        folder = network._namespaces._path(name)
        ip("netns", "delete", short)
        wait_for("the namespace has ended", lambda: not os.listdir(f"{folder}/class/net"))
        assert statistics(network) == {}
        network.close()


def descriptors_of(name: str) -> int:
    """How many sockets of a network namespace this process holds: the kernel reports whose each is (SIOCGSKNS)."""
    found = 0
    for number in os.listdir("/proc/self/fd"):
        with suppress(OSError):
            if os.readlink(f"/proc/self/fd/{number}").startswith("socket:["):
                own = fcntl.ioctl(int(number), 0x894C)
                found += os.readlink(f"/proc/self/fd/{own}") == name
                os.close(own)
    return found


@AS_ROOT
def test_who_asks_for_statistics_needs_no_right(namespace: str) -> None:
    ask = (
        "import os, sys\n"
        "from gpucluster.node_agent.exporter import namespaces\n"
        "from gpucluster.node_agent.exporter.collect.ethtool import Ethtool\n"
        "os.setgid(65534); os.setuid(65534)\n"
        f"namespaces.SECONDS = {PATIENCE_S}\n"
        "held = namespaces.Namespaces(sys.argv[1], keeps=lambda _sysfs: True)\n"
        "held.folders()\n"
        "with held.inside(sys.argv[2]) as inside: print(Ethtool(inside=inside).count('moved0') > 0)"
    )
    name = f"net:[{os.stat(namespace).st_ino}]"
    with activated() as address:
        os.chmod(os.path.dirname(address), 0o755)
        os.chmod(address, 0o666)
        said = subprocess.run([sys.executable, "-c", ask, address, name], text=True, capture_output=True, check=False)
    assert said.stdout.split() == ["True"], said.stderr


def test_interfaces_of_two_pods_with_one_name_are_told_apart_by_the_place_of_their_cards(tmp_path: Path) -> None:
    kernel = KernelDouble({"net1": {"rx_discards_phy": 3}, "rdma0": {"rx_discards_phy": 1}})
    trees = {}
    for number, (tree, interface) in enumerate({"host": "rdma0", "one": "net1", "two": "net1"}.items()):
        card = tmp_path / tree / f"devices/0000:0{number}:00.0/net/{interface}"
        card.mkdir(parents=True)
        (card / "device").symlink_to("../..")
        links = tmp_path / tree / "class/net"
        links.mkdir(parents=True)
        (links / interface).symlink_to(card)
        (links / "lo").mkdir()
        (card / "device").unlink()
        (card / "device").symlink_to(f"../../../0000:0{number}:00.0")
        trees[tree] = tmp_path / tree
    with passing({"net:[7]": trees["one"], "net:[8]": trees["two"]}, sockets=True) as address:
        place = Place(str(trees["host"]), planted_proc(tmp_path, "net:[7]", "net:[8]"), namespaces=address)
        network = NetworkCollector(place, Ethtool(kernel.ioctl))
        assert set(statistics(network)) == {
            ("rdma0", "0000:00:00.0"), ("net1", "0000:01:00.0"), ("net1", "0000:02:00.0"),
        }  # fmt: skip
        network.close()
