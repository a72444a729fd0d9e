"""The two services of systemd: `run`, the reconcile loop, and `join`, which configures new nodes as root."""

from __future__ import annotations

import argparse
import contextlib
import logging
import os
import signal
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from gpucluster.autoscaler.policy import Policy
from gpucluster.errors import EXIT_SUCCESS, InputError

if TYPE_CHECKING:
    from gpucluster.autoscaler.daemon.metrics import Metrics

# Seconds from the signal to the end. systemd would wait 90 s; all work can be interrupted.
_STOP_TIMEOUT = 5.0


def run(arguments: argparse.Namespace) -> int:
    """Reconcile until stopped."""
    from gpucluster.autoscaler.daemon import logs
    from gpucluster.autoscaler.daemon.boot_reports import BOOT_REPORTS
    from gpucluster.autoscaler.daemon.clock import SteadyClock
    from gpucluster.autoscaler.daemon.ledger import Ledger
    from gpucluster.autoscaler.daemon.loop import AutoscalerLoop
    from gpucluster.autoscaler.daemon.metrics import Metrics
    from gpucluster.autoscaler.daemon.oci import OciCloud
    from gpucluster.autoscaler.daemon.prolog_markers import UP_DIRECTORY
    from gpucluster.autoscaler.daemon.schedulers import client
    from gpucluster.autoscaler.daemon.spool import Spool
    from gpucluster.autoscaler.daemon.wake_up import WakeUp

    policy = Policy.load(arguments.config)
    logs.to_stream()
    with Ledger(arguments.state) as ledger:
        clock, metrics = SteadyClock(), Metrics()

        def count_request(operation: str, code: str) -> None:
            metrics.count("oci_requests_total", op=operation, code=code)

        autoscaler = AutoscalerLoop(
            policy,
            slurm=client(policy, state=arguments.state, may_write=lambda: not ledger.load().paused, clock=clock),
            cloud=OciCloud(policy, public_key=_public_key(policy, arguments.public_key), on_request=count_request),
            ledger=ledger,
            spool=Spool(arguments.spool),
            state=arguments.state,
            up=arguments.poke.parent / UP_DIRECTORY.name if policy.scheduler == "slurm" else None,
            # With Kubernetes the service `join` makes the checks of a boot (the role `health`, tasks `gate`).
            boot_reports=BOOT_REPORTS if policy.scheduler == "slurm" else None,
            booting=_booting_file(policy),
            wake_up=WakeUp(arguments.poke),
            metrics=metrics,
            clock=clock,
        )
        _export(metrics, arguments.metrics)
        _until_stopped(autoscaler.stop, autoscaler.run)
        autoscaler.close()
    _exit()
    return EXIT_SUCCESS


def join(arguments: argparse.Namespace) -> int:
    """Configure new nodes until stopped."""
    from gpucluster.autoscaler.daemon import join, logs

    Policy.load(arguments.config)
    logs.to_stream()
    service = join.JoinService(
        arguments.config,
        arguments.state,
        inventory=arguments.inventory or join.INVENTORY,
        work=arguments.work or join.WORK_DIRECTORY,
        public_key=arguments.public_key,
    )
    _until_stopped(service.stop, service.run)
    _exit()
    return EXIT_SUCCESS


def _until_stopped(stop: Callable[..., None], run: Callable[[], None]) -> None:
    """Run until SIGTERM or SIGINT. Work that does not end in time is interrupted, which is safe at any point."""

    def on_signal(*_: object) -> None:
        stop()
        deadline = threading.Timer(_STOP_TIMEOUT, _exit)
        deadline.daemon = True
        deadline.start()

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, on_signal)
    run()


def _exit() -> None:
    """End without waiting for threads: what they do is in the ledger."""
    logging.shutdown()
    with contextlib.suppress(OSError):
        sys.stdout.flush()
    os._exit(EXIT_SUCCESS)


def _booting_file(policy: Policy) -> Path | None:
    """In the folder that systemd makes for the service, and removes with it: only a running one keeps it up to date."""
    from gpucluster.controller import booting_nodes

    folder = os.environ.get("RUNTIME_DIRECTORY")
    # Nodes of Kubernetes boot from no baked image.
    return Path(folder) / booting_nodes.FILE.name if folder and policy.scheduler == "slurm" else None


def _public_key(policy: Policy, file: Path) -> Callable[[], str]:
    """What gives the key of now to a launch.

    Raises:
        EnvironmentFault: there is none, and a pool needs it.
    """
    from gpucluster.autoscaler.daemon import join_key

    if all(pool.baked for pool in policy.pools.values()):
        return str
    join_key.read(file)
    return lambda: join_key.read(file)


def _export(metrics: Metrics, address: str) -> None:
    from gpucluster.autoscaler.daemon.logs import DaemonLog
    from gpucluster.autoscaler.daemon.metrics import Exporter

    host, _, port = address.rpartition(":")
    if not port.isdecimal():
        raise InputError(f"{address} is not HOST:PORT", where="--metrics")
    try:
        exporter = Exporter(metrics, host, int(port))
    except OSError as error:
        DaemonLog("metrics").error(f"no metrics: can't listen on {address}: {error.strerror}")
    else:
        DaemonLog("metrics").info("metrics", address=f"{host}:{exporter.port}")
