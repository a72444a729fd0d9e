"""Collectors side by side: one that hangs, dies, or gives too much, and what it costs the others."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Callable

import pytest

from gpucluster.node_agent.exporter import workers as module
from gpucluster.node_agent.exporter.collect import Collector, Place, Spec
from gpucluster.node_agent.exporter.collect.rdma import Rdma
from gpucluster.node_agent.exporter.exposition import page, sample
from gpucluster.node_agent.exporter.workers import Workers
from tests.doubles.clock import LateTime
from tests.node_agent.exporter.trees import IB, port
from tests.node_agent.exposition import Series, having, of, series
from tests.waiting import hang

Samples = Callable[[str], Iterable[str]]


class Made(Collector):
    """A collector of these subjects."""

    def __init__(self, subjects: Callable[[], list[str]], samples: Samples) -> None:
        self._subjects, self._samples = subjects, samples

    def subjects(self) -> list[str]:
        return self._subjects()

    def samples(self, subject: str) -> Iterable[str]:
        return self._samples(subject)

    def close(self) -> None:
        """Nothing was started."""


def line(subject: str) -> list[str]:
    return [sample("gpucluster_job_node", 1, job_id=subject)]


#: No limit.
LONG = 1e6


def spec(samples: Samples, *subjects: str, seconds: float = LONG, most: int = 100) -> Spec:
    return Spec(lambda _place: Made(lambda: list(subjects), samples), seconds, most)


@pytest.fixture
def make() -> Iterator[Callable[..., Workers]]:
    made: list[Workers] = []

    def new(place: Place | None = None, **specs: Spec) -> Workers:
        made.append(Workers(specs, place or Place()))
        return made[-1]

    yield new
    for each in made:
        each.close()


@pytest.fixture
def late(monkeypatch: pytest.MonkeyPatch) -> Callable[[Workers, str], LateTime]:
    """Time passes only while a collector is busy with a subject, which hangs. The others have time without end."""

    def until(workers: Workers, subject: str) -> LateTime:
        clock = LateTime(lambda: any(each._subject == subject for each in workers._all))
        monkeypatch.setattr(module, "time", clock)
        return clock

    return until


def read(workers: Workers) -> Series:
    return series(page(workers.collect()))


def jobs(found: Series) -> set[str]:
    return {dict(labels)["job_id"] for labels in having(found, "gpucluster_job_node")}


def up(found: Series) -> dict[str, float]:
    return {
        dict(labels)["collector"]: value for labels, value in having(found, "gpucluster_exporter_collector_up").items()
    }


def children() -> set[int]:
    mine = set()
    for name in os.listdir("/proc"):
        if name.isdigit():
            try:
                text = Path("/proc", name, "stat").read_text()
            except OSError:
                continue
            state, parent = text[text.rindex(")") + 2 :].split()[:2]
            if int(parent) == os.getpid() and state != "Z":
                mine.add(int(name))
    return mine


def test_a_collector_keeps_its_process_from_scrape_to_scrape(make: Callable[..., Workers]) -> None:
    workers = make(one=spec(lambda _subject: line(str(os.getpid())), "a"))
    first = jobs(read(workers))
    assert first == jobs(read(workers))
    assert int(first.pop()) != os.getpid()


def test_one_that_hangs_gives_what_it_had_and_the_others_are_whole(
    make: Callable[..., Workers], late: Callable[[Workers, str], LateTime]
) -> None:
    def samples(subject: str) -> Iterable[str]:
        yield from line(subject)
        if subject == "b":
            hang()

    workers = make(hangs=spec(samples, "a", "b", "c", seconds=0.5), well=spec(line, "x"))
    late(workers, "b")
    found = read(workers)
    assert jobs(found) == {"a", "x"}
    assert up(found) == {"hangs": 0, "well": 1}
    assert of(found, "gpucluster_exporter_collector_age_seconds", collector="hangs") is None
    seconds = of(found, "gpucluster_exporter_collector_seconds", collector="hangs")
    assert seconds is not None
    assert seconds >= 0.5
    # The next one leaves out what it hung on. It is not complete, and reports it.
    found = read(workers)
    assert jobs(found) == {"a", "c", "x"}
    assert up(found) == {"hangs": 0, "well": 1}


def test_what_hung_is_tried_again_later(
    make: Callable[..., Workers],
    late: Callable[[Workers, str], LateTime],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    def samples(subject: str) -> Iterable[str]:
        if not (tmp_path / "repaired").exists():
            hang()
        return line(subject)

    workers = make(one=spec(samples, "a", seconds=0.3))
    clock = late(workers, "a")
    monkeypatch.setattr(module, "AVOIDED_S", 0.0)
    assert up(read(workers)) == {"one": 0}
    (tmp_path / "repaired").touch()
    clock.stand_still()
    found = read(workers)
    assert (jobs(found), up(found)) == ({"a"}, {"one": 1})


def test_processes_that_the_kernel_does_not_end_are_few(
    make: Callable[..., Workers], late: Callable[[Workers, str], LateTime], monkeypatch: pytest.MonkeyPatch
) -> None:
    def samples(_subject: str) -> Iterable[str]:
        hang()
        return []

    before = children()
    workers = make(one=spec(samples, "a", seconds=0.1), well=spec(line, "x"))
    late(workers, "a")
    monkeypatch.setattr(module, "AVOIDED_S", 0.0)
    with monkeypatch.context() as patched:
        # As if they slept in a driver: no signal ends them.
        patched.setattr(os, "killpg", lambda *_arguments: None)
        patched.setattr(os, "kill", lambda *_arguments: None)
        for _ in range(6):
            found = read(workers)
            assert (up(found), jobs(found)) == ({"one": 0, "well": 1}, {"x"})
        left = children() - before
        assert len(left) == module.MOST_HUNG + 1, "and the one that is well"
        assert of(found, "gpucluster_exporter_collector_hung", collector="one") == module.MOST_HUNG
    for pid in left:
        os.kill(pid, 9)


@pytest.mark.parametrize("what", ["subjects", "samples", "exit"])
def test_one_that_fails_or_dies_is_there_again_with_the_next_scrape(
    what: str, make: Callable[..., Workers], tmp_path: Path
) -> None:
    def broken() -> bool:
        return not (tmp_path / "repaired").exists()

    def subjects() -> list[str]:
        if what == "subjects" and broken():
            raise OSError("gone")
        return ["a"]

    def samples(subject: str) -> Iterable[str]:
        yield from line(subject)
        if what == "samples" and broken():
            raise RuntimeError("a fault of ours")
        if what == "exit" and broken():
            os._exit(3)

    workers = make(one=Spec(lambda _place: Made(subjects, samples), LONG, 100), well=spec(line, "x"))
    found = read(workers)
    assert (jobs(found), up(found)["one"]) in (({"x"}, 0), ({"a", "x"}, 0))
    (tmp_path / "repaired").touch()
    found = read(workers)
    assert (jobs(found), up(found)) == ({"a", "x"}, {"one": 1, "well": 1})


def test_a_fault_is_reported_once(
    make: Callable[..., Workers], late: Callable[[Workers, str], LateTime], capfd: pytest.CaptureFixture[str]
) -> None:
    def samples(subject: str) -> Iterable[str]:
        if subject == "hangs":
            hang()
        raise OSError(5, "Input/output\nerror")

    workers = make(one=spec(samples, "a"), two=spec(samples, "hangs", seconds=0.2))
    late(workers, "hangs")
    for _ in range(3):
        read(workers)
    said = sorted(capfd.readouterr().err.splitlines())
    assert said == [
        "a: OSError: [Errno 5] Input/output error",
        "two gave no answer within 0.2 s: hangs is left out for 600 s",
    ]


def test_what_is_above_the_limit_of_series_is_counted(make: Callable[..., Workers]) -> None:
    def samples(subject: str) -> Iterable[str]:
        return [sample("gpucluster_job_node", 1, job_id=f"{subject}{number}") for number in range(80)]

    found = read(make(one=spec(samples, "a", "b")))
    assert len(jobs(found)) == 100
    assert of(found, "gpucluster_exporter_series_left_out", collector="one") == 60


def test_one_that_never_stops_talking_is_ended(make: Callable[..., Workers], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MOST_BYTES", 1 << 20)

    def subjects() -> list[str]:
        return [f"{number:0100}" for number in range(100_000)]

    workers = make(one=Spec(lambda _place: Made(subjects, lambda _subject: []), LONG, 10), well=spec(line, "x"))
    found = read(workers)
    assert (jobs(found), up(found)) == ({"x"}, {"one": 0, "well": 1})


def test_the_age_of_the_last_complete_result_is_seen(
    make: Callable[..., Workers], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def samples(subject: str) -> Iterable[str]:
        if (tmp_path / "broken").exists():
            raise OSError("gone")
        return line(subject)

    clock = LateTime()
    monkeypatch.setattr(module, "time", clock)
    workers = make(one=spec(samples, "a"))
    read(workers)
    (tmp_path / "broken").touch()
    clock.now += 90.5
    assert of(read(workers), "gpucluster_exporter_collector_age_seconds", collector="one") == 90.5


def test_processor_time_only_grows(make: Callable[..., Workers], tmp_path: Path) -> None:
    def samples(subject: str) -> Iterable[str]:
        sum(range(2_000_000))
        if (tmp_path / "die").exists():
            os._exit(1)
        return line(subject)

    workers = make(one=spec(samples, "a"))
    spent = []
    for number in range(4):
        if number == 2:
            (tmp_path / "die").touch()
        spent.append(of(read(workers), "gpucluster_exporter_cpu_seconds_total") or 0.0)
    assert spent == sorted(spent)
    assert spent[1] > spent[0]


def test_a_device_that_hangs_leaves_the_other_devices(
    make: Callable[..., Workers], late: Callable[[Workers, str], LateTime], tmp_path: Path
) -> None:
    for name in ("mlx5_0", "mlx5_1", "mlx5_2"):
        port(tmp_path, name, IB, ())
    # No program opens a pipe for writing: opening it for reading hangs, as a file of a dead device does.
    file = tmp_path / "class/infiniband/mlx5_1/ports/1/counters/link_downed"
    file.unlink()
    os.mkfifo(file)
    workers = make(Place(sysfs=str(tmp_path)), rdma=Spec(Rdma, 0.5, 1000))
    late(workers, str(tmp_path / "class/infiniband/mlx5_1"))
    read(workers)
    found = read(workers)
    devices = {dict(labels)["device"] for labels in having(found, "gpucluster_rdma_counter_total")}
    assert (devices, up(found)) == ({"mlx5_0", "mlx5_2"}, {"rdma": 0})


def test_closing_ends_every_process(make: Callable[..., Workers]) -> None:
    before = children()
    workers = make(one=spec(line, "a"), two=spec(line, "b"))
    read(workers)
    assert len(children() - before) == 2
    workers.close()
    assert children() - before == set()  # one of an earlier test may end in between


def test_a_clock_that_jumps_is_not_looked_at() -> None:
    folder = Path(module.__file__).parent
    assert not [file for file in folder.rglob("*.py") if re.search(r"time\.time\b|datetime|utime\(", file.read_text())]
