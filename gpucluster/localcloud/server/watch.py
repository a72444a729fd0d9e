"""Notices instances and control planes whose containers were stopped or removed behind the local cloud's back, such as
by `podman rm`.

It looks when a client asks for instances, and not more often than every few seconds: without clients it costs nothing.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping

from gpucluster.errors import GpuClusterError
from gpucluster.localcloud.api import container_engine
from gpucluster.localcloud.compute import lifecycle
from gpucluster.localcloud.engine.protocol import RunState
from gpucluster.localcloud.state.cloud import CloudState, log
from gpucluster.localcloud.state.lifecycle_states import LifecycleState
from gpucluster.localcloud.state.store import Resource

# Seconds for which the states of all containers are trusted.
_TRUSTED = 5.0
# What a container should be while its instance is in this state. In any other state, a job works on it.
_EXPECTED = {LifecycleState.RUNNING: RunState.RUNNING, LifecycleState.STOPPED: RunState.STOPPED}


class ContainerWatch:
    """Compares the instances with their containers.

    Args:
        clock: seconds, for tests.
    """

    def __init__(self, cloud: CloudState, clock: Callable[[], float] = time.monotonic) -> None:
        self._cloud = cloud
        self._clock = clock
        self._looking = threading.Lock()
        self._looked = -_TRUSTED

    def look(self) -> None:
        """Bring the rows up to date, unless that was done just now."""
        with self._looking:
            if self._clock() - self._looked < _TRUSTED:
                return
            try:
                # Rows first: a container that is launched meanwhile is in the states.
                rows = self._cloud.store.find("instance")
                clusters = self._cloud.store.find(container_engine.KIND) if self._cloud.engine.networked else []
                states = self._cloud.engine.states()
            except (GpuClusterError, ValueError) as error:  # a listing that was cut short is not JSON
                log.error("the containers can't be listed: %s", error)
                return
            finally:
                self._looked = self._clock()
            if states is not None:
                for row in rows:
                    self._compare(row, states)
                container_engine.look(self._cloud, clusters, states)

    def _compare(self, row: Resource, states: Mapping[str, RunState]) -> None:
        container_state = states.get(row.hidden["name"], RunState.ABSENT)
        if row.hidden.get("dead") or _EXPECTED.get(LifecycleState(row.state), container_state) == container_state:
            return
        with self._cloud.locked(row.id):
            instance = self._cloud.get("instance", row.id)
            if LifecycleState(instance.state) not in _EXPECTED:
                return
            log.warning("the container of %s (%s) is %s", instance.body["displayName"], instance.id, container_state)
            lifecycle.sync_state(self._cloud, instance.id, by_itself=True, before=instance)
