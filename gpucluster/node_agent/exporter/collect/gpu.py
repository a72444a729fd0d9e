"""NVIDIA's GPUs by nvidia-smi, for hosts without a DCGM exporter.

One nvidia-smi runs all the time and prints a row for each GPU every few seconds: each start of the program costs more
processor time than a hundred rows, because it looks for all GPUs again.

No row is of an instance of a divided GPU (MIG). The memory of instances is in `nvidia-smi -q -x`, which is asked once a
minute. Their utilization is in none of its outputs: "On MIG-enabled GPUs, querying device utilization rates is not
currently supported" (NVML, nvmlDeviceGetUtilizationRates); DCGM has it, in its profiling fields.
"""

from __future__ import annotations

import os
import re
import selectors
import time
from collections.abc import Iterator, Sequence
from typing import Callable

from gpucluster.node_agent import programs
from gpucluster.node_agent.exporter.collect import Place
from gpucluster.node_agent.exporter.exposition import sample
from gpucluster.node_agent.gpu_numbers import Numbers
from gpucluster.node_agent.mig import collect

INTERVAL_S = 10
_FIELDS = ("index", "uuid", "utilization.gpu", "memory.used", "memory.total", "power.draw", "temperature.gpu")
ARGV = (
    "nvidia-smi", f"--query-gpu={','.join(_FIELDS)}", "--format=csv,noheader,nounits", f"--loop={INTERVAL_S}",
)  # fmt: skip
#: After so many seconds without a row it is started again, and rows of before are no longer shown. A tool that ends is
#: not started more often than that, either.
PATIENCE_S = 3.5 * INTERVAL_S
# The first rows of a host with eight GPUs come within two seconds where the driver stays loaded.
FIRST_S = 3.0
_MIB = 1 << 20
# The metric of each field, and the factor from its unit: %, MiB, MiB, W, degrees.
_METRICS = (
    ("gpucluster_gpu_utilization_ratio", 0.01),
    ("gpucluster_gpu_memory_used_bytes", float(_MIB)),
    ("gpucluster_gpu_memory_total_bytes", float(_MIB)),
    ("gpucluster_gpu_power_watts", 1.0),
    ("gpucluster_gpu_temperature_celsius", 1.0),
)
_NUMBER = re.compile(r"[0-9]+(\.[0-9]+)?")
_INDEX = re.compile(r"[0-9]{1,4}")
_MOST_LINE = 4096
_TOGETHER_S = 0.05
#: The subject of the instances of divided GPUs; how long an answer about them counts; and the limit of one.
INSTANCES, _INSTANCES_S, _INSTANCES_LIMIT_S = "instances", 60.0, 4.0
_MOST_XML = 8 << 20
_SIZE = re.compile(r"([0-9]+) MiB")


class NoAnswer(Exception):
    """nvidia-smi gives no answer; the message has the reason."""


class GpuCollector:
    """What nvidia-smi printed last about each GPU."""

    def __init__(self, place: Place, argv: Sequence[str] = ARGV, clock: Callable[[], float] = time.monotonic) -> None:
        self._argv, self._clock = list(argv), clock
        self._tool: programs.Running[bytes] | None = None
        # Killed, and not ended: it hangs in the kernel.
        self._left: programs.Running[bytes] | None = None
        self._started = self._taken = -PATIENCE_S
        self._rest = b""
        # By index: when a row came, and its lines.
        self._rows: dict[str, tuple[float, list[str]]] = {}
        self._instances = Instances(place, argv[0], clock)

    def subjects(self) -> list[str]:
        """All GPUs: they come from one program. Their instances come from another output of it."""
        return ["nvidia-smi", *self._instances.subjects()]

    def samples(self, subject: str) -> Iterator[str]:
        """The lines of all GPUs of which there is a young row, or those of their instances.

        Raises:
            NoAnswer: there is none.
            OSError: the program can't be started.
        """
        if subject == INSTANCES:
            yield from self._instances.samples()
            return
        self._keep_running()
        self._take(0.0 if self._young() else FIRST_S)
        young = self._young()
        if not young:
            raise NoAnswer(f"{self._argv[0]} printed no row within {PATIENCE_S:g} s")
        for lines in young:
            yield from lines

    def close(self) -> None:
        """End the program."""
        tool, self._tool = self._tool, None
        if tool is not None and not programs.end(tool, 0.0):
            self._left = tool

    def _young(self) -> list[list[str]]:
        now = self._clock()
        self._rows = {index: row for index, row in self._rows.items() if now - row[0] <= PATIENCE_S}
        return [lines for _at, lines in self._rows.values()]

    def _keep_running(self) -> None:
        """Start the program, or start it again after it ended or said nothing for too long.

        Also after a time without a scrape: what waits to be read is old then.
        """
        now = self._clock()
        newest = max([self._started, *(at for at, _lines in self._rows.values())])
        if self._tool is not None and now - max(newest, self._taken) > PATIENCE_S:
            self.close()
        elif self._tool is not None and (self._tool.poll() is not None or now - newest > PATIENCE_S):
            self._take(0.0)
            self.close()
        if self._left is not None and self._left.poll() is not None:
            self._left = None
        if self._tool is None and self._left is None and now - self._started >= PATIENCE_S:
            self._started, self._rest = now, b""
            self._tool = programs.stream(self._argv)

    def _take(self, seconds: float) -> None:
        """Read what the program has printed; wait for the first row at most so long."""
        self._taken = self._clock()
        tool = self._tool
        if tool is None or tool.stdout is None:
            return
        until = time.monotonic() + seconds
        with selectors.DefaultSelector() as selector:
            selector.register(tool.stdout, selectors.EVENT_READ)
            while selector.select(max(0.0, until - time.monotonic())):
                data = os.read(tool.stdout.fileno(), 1 << 16)
                if not data:
                    return
                self._keep(self._rest + data)
                if self._rows:
                    # The other rows of the same moment follow at once.
                    until = min(until, time.monotonic() + _TOGETHER_S)

    def _keep(self, data: bytes) -> None:
        *lines, rest = data.split(b"\n")
        self._rest = rest[:_MOST_LINE]
        for line in lines:
            index, values = parse(line.decode(errors="replace"))
            if values:
                self._rows[index] = (self._clock(), values)


def parse(line: str) -> tuple[str, list[str]]:
    """The index of a GPU and its lines; nothing of a row that is a message.

    A field that is not a number ([N/A], [GPU is lost], [Unknown Error]) has no sample.
    """
    fields = [field.strip() for field in line.split(",")]
    if len(fields) != len(_FIELDS) or not _INDEX.fullmatch(fields[0]):
        return "", []
    index, uuid, *values = fields
    lines = [
        sample(metric, float(value) * factor, gpu=index, uuid=uuid)
        for value, (metric, factor) in zip(values, _METRICS)
        if _NUMBER.fullmatch(value)
    ]
    return index, lines


class Instances:
    """The memory of the instances of divided GPUs. Elsewhere nothing is asked."""

    def __init__(self, place: Place, program: str, clock: Callable[[], float]) -> None:
        self._place, self._program, self._clock = place, program, clock
        self._at, self._lines = -_INSTANCES_S, list[str]()

    def subjects(self) -> list[str]:
        """One, where GPUs of this node are divided."""
        return [INSTANCES] if self._numbers().instances else []

    def samples(self) -> list[str]:
        """The lines of all instances, at most a minute old.

        Raises:
            NoAnswer: nvidia-smi does not report them.
        """
        now = self._clock()
        if now - self._at >= _INSTANCES_S:
            answer = programs.ask((self._program, "-q", "-x"), _INSTANCES_LIMIT_S, _MOST_XML)
            if answer.fault or answer.status != 0:
                raise NoAnswer(answer.fault or f"{self._program} -q -x ended with status {answer.status}")
            self._lines, self._at = memory(answer.output.decode(errors="replace"), self._numbers()), now
        return self._lines

    def _numbers(self) -> Numbers:
        return Numbers(self._place.proc, self._place.mig)


def memory(text: str, numbers: Numbers) -> list[str]:
    """The lines of the instances in `nvidia-smi -q -x`.

    Raises:
        NoAnswer: the output is none of it.
    """
    try:
        gpus = collect.document(text).findall("gpu")
    except collect.Unreadable as error:
        raise NoAnswer(str(error)) from None
    uuids = {(each.number, each.instance): each.uuid for each in numbers.instances}
    lines = []
    for index, gpu in enumerate(gpus):
        for device in gpu.findall("mig_devices/mig_device"):
            instance = device.findtext("gpu_instance_id", "").strip()
            if (str(index), instance) not in uuids:
                continue
            labels = {"gpu": str(index), "gpu_instance": instance, "uuid": uuids[str(index), instance]}
            for name in ("used", "total"):
                size = _SIZE.fullmatch(device.findtext(f"fb_memory_usage/{name}", "").strip())
                if size:
                    metric = f"gpucluster_gpu_instance_memory_{name}_bytes"
                    lines.append(sample(metric, float(size[1]) * _MIB, **labels))
    return lines
