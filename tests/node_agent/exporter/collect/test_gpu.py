"""GPUs without a DCGM exporter: rows of nvidia-smi, and an nvidia-smi that hangs, dies, or talks nonsense.

The rows have the form that `nvidia-smi --query-gpu` of driver 580 prints; the program is a script here.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from gpucluster.node_agent.exporter.collect import Place, gpu
from gpucluster.node_agent.exporter.collect.gpu import INSTANCES, PATIENCE_S, GpuCollector, NoAnswer, parse
from gpucluster.node_agent.exporter.exposition import page
from tests import waiting
from tests.doubles.clock import Clock
from tests.node_agent.exposition import Series, having, of, series
from tests.node_agent.mig.divided import Divided
from tests.node_agent.mig.smi import uuid
from tests.waiting import wait_for

ROW = "{index}, GPU-{index}, 97, 1024, 143771, 612.45, 61"


class Tool:
    """A script in nvidia-smi's place, and its collector."""

    def __init__(self, folder: Path) -> None:
        self.file, self.clock = folder / "nvidia-smi", Clock()
        self.starts = folder / "starts"
        # Where a script waits until the test lets it go on, and what it prints when it has.
        self.go, self.gone_on = folder / "go", folder / "gone-on"
        os.mkfifo(self.go)
        self.collector = GpuCollector(Place(mig=str(folder / "none")), [str(self.file)], self.clock)

    def does(self, script: str) -> None:
        new = self.file.with_suffix(".new")
        new.write_text(f"#!/bin/sh\necho $$ >> {self.starts}\n{script}\n")
        new.chmod(0o755)
        new.replace(self.file)

    def goes_on(self) -> None:
        """Let a script with `rows`, `waits` and more come to its end."""
        self.go.write_text("")
        wait_for("the script has printed all", self.gone_on.exists)

    def read(self) -> Series:
        return series(page(self.collector.samples("nvidia-smi")))

    def started(self) -> list[int]:
        return [int(line) for line in self.starts.read_text().split()] if self.starts.exists() else []


@pytest.fixture
def tool(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Tool]:
    monkeypatch.setattr(gpu, "FIRST_S", waiting.PATIENCE_S)
    found = Tool(tmp_path)
    yield found
    found.collector.close()


def rows(*indices: int) -> str:
    """The command that prints these rows, at once: a collector waits for the rest of them a short time only."""
    return f"printf '{''.join(ROW.format(index=index) + chr(92) + 'n' for index in indices)}'"


def test_rows_of_a_real_machine() -> None:
    lines = (Path(__file__).parents[1] / "data" / "nvidia-smi-query-gpu.csv").read_text().splitlines()
    found = series(page(line for row in lines for line in parse(row)[1]))
    assert len(found) == 10
    labels = {"gpu": "1", "uuid": "GPU-00000000-0000-0000-0000-000000000002"}
    assert of(found, "gpucluster_gpu_power_watts", **labels) == 76.2


def test_a_row_in_the_units_of_the_metrics() -> None:
    found = series(page(parse("0, GPU-5f, 97, 1024, 143771, 612.45, 61")[1]))
    labels = {"gpu": "0", "uuid": "GPU-5f"}
    assert of(found, "gpucluster_gpu_utilization_ratio", **labels) == pytest.approx(0.97)
    assert of(found, "gpucluster_gpu_memory_used_bytes", **labels) == 1 << 30
    assert of(found, "gpucluster_gpu_memory_total_bytes", **labels) == 143771 << 20
    assert of(found, "gpucluster_gpu_power_watts", **labels) == 612.45
    assert of(found, "gpucluster_gpu_temperature_celsius", **labels) == 61


@pytest.mark.parametrize(
    "words", ["[N/A]", "[Not Supported]", "[GPU is lost]", "[Unknown Error]", "N/A", "", "nan", "-1"]
)
def test_a_field_without_a_number_has_no_sample(words: str) -> None:
    found = series(page(parse(f"0, GPU-5f, {words}, 1024, 143771, {words}, 61")[1]))
    assert {name for name, _labels in found} == {
        "gpucluster_gpu_memory_used_bytes", "gpucluster_gpu_memory_total_bytes", "gpucluster_gpu_temperature_celsius",
    }  # fmt: skip


@pytest.mark.parametrize(
    "line",
    [
        "Unable to determine the device handle for GPU0000:0F:00.0: Unknown Error",
        "NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver.",
        "No devices were found",
        "index, uuid, utilization.gpu [%], memory.used [MiB], memory.total [MiB], power.draw [W], temperature.gpu",
        "[GPU is lost], [GPU is lost], 1, 2, 3, 4, 5", "0, GPU-1, 2, 3", "", "\0", '"', "٣, GPU-1, 1, 1, 1, 1, 1",
    ],
)  # fmt: skip
def test_a_line_that_is_not_a_row_has_no_samples(line: str) -> None:
    assert parse(line) == ("", [])


def test_one_program_answers_many_scrapes(tool: Tool) -> None:
    tool.does(f"{rows(0, 1)}\nread _ < {tool.go}\n{rows(0, 1, 2)}\ntouch {tool.gone_on}\nexec sleep 6000")
    for _ in range(3):
        assert len(having(tool.read(), "gpucluster_gpu_power_watts")) == 2
        tool.clock.now += 10
    tool.goes_on()
    assert len(having(tool.read(), "gpucluster_gpu_power_watts")) == 3
    assert len(tool.started()) == 1


def test_a_lost_gpu_leaves_the_others(tool: Tool) -> None:
    tool.does(f"{rows(0)}\necho 'Unable to determine the device handle for GPU1: Unknown Error'\nexec sleep 6000")
    assert list(having(tool.read(), "gpucluster_gpu_power_watts")) == [(("gpu", "0"), ("uuid", "GPU-0"))]


def test_old_rows_are_not_shown_as_new_ones(tool: Tool) -> None:
    tool.does(f"{rows(0)}\nexec sleep 6000")
    assert tool.read()
    tool.clock.now += PATIENCE_S / 2
    assert tool.read()
    tool.does("exec sleep 6000")
    gpu.FIRST_S = 0.1
    tool.clock.now += PATIENCE_S
    with pytest.raises(NoAnswer):
        tool.read()


def test_a_program_that_hangs_is_replaced_and_not_more_often_than_its_patience(tool: Tool) -> None:
    gpu.FIRST_S = 0.1
    tool.does("exec sleep 6000")
    for _ in range(3):
        with pytest.raises(NoAnswer):
            tool.read()
        tool.clock.now += 1
    wait_for("the program has begun", tool.started)
    (first,) = tool.started()
    gpu.FIRST_S = waiting.PATIENCE_S
    tool.does(f"{rows(0)}\nexec sleep 6000")
    tool.clock.now += PATIENCE_S + 1
    assert tool.read()
    with pytest.raises(ProcessLookupError):
        os.kill(first, 0)


def test_a_program_that_ends_is_started_again_but_not_with_every_scrape(tool: Tool) -> None:
    tool.does(rows(0))
    for _ in range(3):
        assert tool.read()
        tool.clock.now += 10
    assert len(tool.started()) == 1
    tool.clock.now += PATIENCE_S
    assert tool.read()
    assert len(tool.started()) == 2


def test_what_waited_while_no_client_asked_is_not_believed(tool: Tool) -> None:
    tool.does(f"{rows(0)}\nread _ < {tool.go}\n{rows(0, 1)}\ntouch {tool.gone_on}\nexec sleep 6000")
    assert tool.read()
    tool.goes_on()
    tool.does(f"{rows(2)}\nexec sleep 6000")
    tool.clock.now += 1000
    assert list(having(tool.read(), "gpucluster_gpu_power_watts")) == [(("gpu", "2"), ("uuid", "GPU-2"))]


def test_a_host_without_the_program(tool: Tool) -> None:
    with pytest.raises(OSError, match="nvidia-smi"):
        tool.read()
    with pytest.raises(NoAnswer):
        tool.read()


def test_a_program_that_the_kernel_does_not_end_gets_no_second_one(tool: Tool, monkeypatch: pytest.MonkeyPatch) -> None:
    gpu.FIRST_S = 0.1
    tool.does("exec sleep 6000")
    with pytest.raises(NoAnswer):
        tool.read()
    # As if it slept in a driver: killed, and still there.
    wait_for("the program has begun", tool.started)
    stuck = tool.collector._tool
    assert stuck is not None
    with monkeypatch.context() as patched:
        patched.setattr(stuck, "terminate", lambda: None)
        patched.setattr(stuck, "kill", lambda: None)
        for _ in range(3):
            tool.clock.now += PATIENCE_S + 1
            with pytest.raises(NoAnswer):
                tool.read()
    assert len(tool.started()) == 1
    stuck.kill()
    stuck.wait()
    tool.does(f"{rows(0)}\nexec sleep 6000")
    gpu.FIRST_S = waiting.PATIENCE_S
    tool.clock.now += PATIENCE_S + 1
    assert tool.read()


# --- instances of divided GPUs (MIG) -----


@pytest.fixture
def divided(tmp_path: Path) -> Divided:
    return Divided(tmp_path / "root")


def gpus_of(divided: Divided, tool: Tool) -> GpuCollector:
    return GpuCollector(Place(proc=divided.proc, mig=divided.links), [str(tool.file)], tool.clock)


def test_each_instance_has_its_memory_and_no_use_of_the_whole_gpu(divided: Divided, tool: Tool, tmp_path: Path) -> None:
    large = next(each for each in divided.place.smi.cards[1].made if each.profile == "3g.40gb")
    large.used = 1234
    (tmp_path / "xml").write_text(divided.place.smi.query())
    tool.does(f'[ "$*" = "-q -x" ] && exec cat {tmp_path}/xml; exit 9')
    collector = gpus_of(divided, tool)
    assert collector.subjects() == ["nvidia-smi", INSTANCES]
    found = series(page(collector.samples(INSTANCES)))
    labels = {"gpu": "1", "gpu_instance": str(large.number), "uuid": uuid(2, "3g.40gb", 4)}
    assert of(found, "gpucluster_gpu_instance_memory_used_bytes", **labels) == 1234 << 20
    assert of(found, "gpucluster_gpu_instance_memory_total_bytes", **labels) == 40960 << 20
    assert len(found) == 2 * 11
    # Each start costs: it is asked again after a minute.
    large.used = 7
    (tmp_path / "xml").write_text(divided.place.smi.query())
    for pause, used in ((30, 1234), (31, 7)):
        tool.clock.now += pause
        found = series(page(collector.samples(INSTANCES)))
        assert of(found, "gpucluster_gpu_instance_memory_used_bytes", **labels) == used << 20
    assert len(tool.started()) == 2


def test_an_instance_that_reports_no_memory_has_none(divided: Divided, tool: Tool, tmp_path: Path) -> None:
    (tmp_path / "xml").write_text(divided.place.smi.query().replace("<used>12 MiB", "<used>N/A"))
    tool.does(f"exec cat {tmp_path}/xml")
    found = series(page(gpus_of(divided, tool).samples(INSTANCES)))
    assert {name for name, _labels in found} == {"gpucluster_gpu_instance_memory_total_bytes"}


@pytest.mark.parametrize("script", ["exit 9", "echo '<nvidia_smi_log>'", "kill -9 $$"])
def test_an_nvidia_smi_that_does_not_report_the_instances(divided: Divided, tool: Tool, script: str) -> None:
    tool.does(script)
    with pytest.raises(NoAnswer):
        list(gpus_of(divided, tool).samples(INSTANCES))


def test_where_no_gpu_is_divided_nothing_is_asked_for_instances(tool: Tool) -> None:
    assert tool.collector.subjects() == ["nvidia-smi"]
