"""Boots an instance again that has rebooted itself, such as by `sudo reboot`: in OCI it stays RUNNING.

No client may be there to ask for instances meanwhile: of a cluster whose controller boots again, the autoscaler runs on
that controller. So this waits for the engine's own events.
"""

from __future__ import annotations

import asyncio
import contextlib

from gpucluster import process
from gpucluster.environment import Program
from gpucluster.localcloud.compute import lifecycle
from gpucluster.localcloud.state.cloud import CloudState, log
from gpucluster.localcloud.state.lifecycle_states import LifecycleState
from gpucluster.process import bound

_PAUSE = 5.0  # seconds until the engine is asked for its events again, after the program that reports them has ended


async def follow(cloud: CloudState) -> None:
    """Boot what has rebooted itself, until this is cancelled."""
    while command := cloud.engine.event_command():
        await _follow_once(cloud, command)
        await asyncio.sleep(_PAUSE)


async def _follow_once(cloud: CloudState, command: list[str]) -> None:
    child = await asyncio.create_subprocess_exec(
        *bound.to_this_process(command),
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.DEVNULL,
        env=process.environment_for(Program.TOOLS),
    )
    try:
        assert child.stdout is not None
        async for line in child.stdout:
            ocid = cloud.engine.rebooted(line.decode(errors="replace"))
            if ocid:
                cloud.submit(f"boot {ocid} again", lambda ocid=ocid: _boot(cloud, ocid))  # type: ignore[misc]
    finally:
        with contextlib.suppress(ProcessLookupError):
            child.terminate()
        await child.wait()


def _boot(cloud: CloudState, ocid: str) -> None:
    with cloud.locked(ocid):
        instance = cloud.store.get("instance", ocid)
        if instance is None:
            return  # a container of a control plane, which has no row of this kind
        noticed = instance.state == LifecycleState.STOPPED and instance.hidden.get("stopped_by_itself")
        if instance.state != LifecycleState.RUNNING and not noticed:
            return  # its end was asked for
        log.info("%s (%s) has rebooted itself", instance.body["displayName"], ocid)
        lifecycle.start_stopped(cloud, ocid)
