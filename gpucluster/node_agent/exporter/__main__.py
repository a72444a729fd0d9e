"""`gpucluster-agent exporter`: metrics of this host for Prometheus."""

from __future__ import annotations

import argparse
import os
import socket
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from gpucluster.node_agent import version
from gpucluster.node_agent.errors import AgentError, Refused, of_system
from gpucluster.node_agent.exporter import namespaces, server
from gpucluster.node_agent.exporter.collect import Place, Spec
from gpucluster.node_agent.exporter.collect.gpu import GpuCollector
from gpucluster.node_agent.exporter.collect.jobs import JobCollector
from gpucluster.node_agent.exporter.collect.network import NetworkCollector
from gpucluster.node_agent.exporter.collect.rdma import Rdma
from gpucluster.node_agent.exporter.collect.watch import Watch
from gpucluster.node_agent.exporter.exposition import page, sample
from gpucluster.node_agent.exporter.workers import Workers
from gpucluster.node_agent.notify import notify

PORT = 9500
#: By name. The limits are below the time that Prometheus gives a scrape (10 s). Sixteen devices with sixty counters
#: have a thousand samples.
COLLECTORS: Mapping[str, Spec] = {
    "rdma": Spec(Rdma, 4.0, 8192),
    "network": Spec(NetworkCollector, 4.0, 4096),
    "jobs": Spec(JobCollector, 2.0, 4096),
    # The first rows, and once a minute the instances of divided GPUs.
    "gpu": Spec(GpuCollector, 8.0, 1024),
    "watch": Spec(Watch, 2.0, 1024),
}
_USUAL = ("rdma", "network", "jobs")


def main(argv: Sequence[str] | None = None) -> int:
    """Serve metrics, or make one page. Returns the exit status."""
    parser = _parser()
    options = parser.parse_args(argv)
    if [bool(options.command), options.once, options.textfile is not None, bool(options.address)].count(True) != 1:
        parser.error("give one of: serve, namespaces, --once, --textfile PATH, --address-toward ADDRESS")
    try:
        if options.command == "namespaces":
            return _give()
        return _serve(options) if options.command else _address(options) if options.address else _once(options)
    except AgentError as error:
        sys.stderr.write(f"gpucluster-agent exporter: {error.message}\n{error.hint}\n")
        return error.status
    except KeyboardInterrupt:
        return 130


def _serve(options: argparse.Namespace) -> int:
    host, colon, port = (options.listen or "").rpartition(":")
    if not colon or not port.isdigit() or bool(host) == bool(options.toward):
        raise Refused(
            f"--listen {options.listen or ''} is not understood",
            f"Give --listen ADDRESS:{PORT}, or --listen :{PORT} --toward ADDRESS of the host that asks",
        )
    try:
        listener = server.listen(host or server.address_toward(options.toward), int(port))
    except (OSError, OverflowError) as error:
        raise of_system(error if isinstance(error, OSError) else OSError(str(error)), options.listen) from None
    workers = Workers(_specs(options), _place(options))
    serving = server.ExporterServer(listener, workers, options.allow, _about)
    notify("READY=1")
    serving.serve()
    return 0


def _give() -> int:
    try:
        with socket.socket(fileno=os.dup(0)) as asker:
            namespaces.give(asker)
    except OSError as error:
        raise of_system(error, "the network namespaces of this host") from None
    return 0


def _once(options: argparse.Namespace) -> int:
    workers = Workers(_specs(options), _place(options))
    try:
        text = page([*workers.collect(), *_about()])
    finally:
        workers.close()
    if options.once:
        sys.stdout.write(text)
        return 0
    new = options.textfile.with_name(f".{options.textfile.name}.{os.getpid()}")
    try:
        new.write_text(text, encoding="utf-8")
        new.chmod(0o644)
        os.replace(new, options.textfile)
    except OSError as error:
        new.unlink() if new.exists() else None
        raise of_system(error) from None
    return 0


def _address(options: argparse.Namespace) -> int:
    try:
        sys.stdout.write(server.address_toward(options.address) + "\n")
    except OSError as error:
        raise of_system(error, options.address) from None
    return 0


def _about() -> list[str]:
    return [sample("gpucluster_exporter_info", 1, version=version.package_version())]


def _specs(options: argparse.Namespace) -> dict[str, Spec]:
    names = dict.fromkeys(name for name in options.collectors.split(",") if name)
    unknown = [name for name in names if name not in COLLECTORS]
    if unknown:
        raise Refused(f"there is no collector {', '.join(unknown)}", f"There are: {', '.join(COLLECTORS)}")
    return {name: COLLECTORS[name] for name in names}


def _place(options: argparse.Namespace) -> Place:
    return Place(
        str(options.sysfs_root), str(options.proc_root), str(options.jobs), str(options.watch), options.namespaces
    )


def _parser() -> argparse.ArgumentParser:
    place = Place()
    parser = argparse.ArgumentParser(prog="gpucluster-agent exporter", description=__doc__)
    add = parser.add_argument
    add(
        "command",
        nargs="?",
        choices=["serve", "namespaces"],
        help="serve metrics until stopped (GET /metrics), or pass /sys of each network namespace to standard input, a "
        "socket",
    )
    add("--once", action="store_true", help="print the metrics once")
    add("--textfile", type=Path, metavar="PATH", help="write the metrics once into a file, for node_exporter")
    add("--address-toward", dest="address", metavar="ADDRESS", help="print the address with which this host reaches it")
    add("--listen", metavar="ADDRESS:PORT", help="where to serve; without ADDRESS see --toward")
    add("--toward", metavar="ADDRESS", help="serve at the address with which this host reaches ADDRESS")
    add("--allow", action="append", default=[], metavar="ADDRESS", help="answer only this address; may be repeated")
    add("--collectors", default=",".join(_USUAL), metavar="NAMES", help=f"of {', '.join(COLLECTORS)} (%(default)s)")
    add("--sysfs-root", type=Path, default=Path(place.sysfs), help="where /sys is (%(default)s)")
    add("--proc-root", type=Path, default=Path(place.proc), help="where /proc is (%(default)s)")
    add(
        "--namespaces",
        default=place.namespaces,
        metavar="SOCKET",
        help="who passes /sys of other network namespaces: RDMA devices in pods are read there",
    )
    add("--jobs", type=Path, default=Path(place.jobs), help="the folder of running jobs (%(default)s)")
    add("--watch", type=Path, default=Path(place.watch), help="what the watcher of jobs has seen (%(default)s)")
    return parser


if __name__ == "__main__":
    sys.exit(main())
