"""Faults planted in trainings on real GPUs, and what the watcher reports of them; printed, never asserted.

    python benchmarks/hangs.py faults [--gpus 0,1,2,3] [--hang 30] [--only NAME,...] [--seconds N] [--out DIR]
    python benchmarks/hangs.py healthy [the same]
    python benchmarks/hangs.py cost    [the same]

faults   each pair of GPUs has a training and a watcher of its own. A fault begins at a random moment; the watcher has
         `LIMIT_S` for its name. Faults that can end are ended, and the next one comes in the same training.
healthy  phases of a minute without an operation of NCCL, and trainings of several kinds: what the watcher reported.
cost     steps of a training on all GPUs in a second: without a watcher, with it, and with one that looks every second.

It needs root, PyTorch with NCCL 2.24 or later, and two GPUs for each training. The file of each job, which the prolog
of Slurm writes on a node, and the control group, which slurmd makes, are made here. Trainings do not see each other:
each has a network of its own, as the port of NCCL's RAS is one for a host. With --out, every look of the watchers is
written there as JSON.
"""

from __future__ import annotations

import argparse
import contextlib
import fcntl
import json
import multiprocessing
import os
import queue
import random
import shutil
import signal
import socket
import statistics
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from gpucluster.node_agent.watch import __main__ as watch
from gpucluster.node_agent.watch import client, judge, ras

FORK = multiprocessing.get_context("fork")
LIMIT_S, START_S, PHASE_S = 75.0, 90.0, 65.0
CGROUPS = Path("/sys/fs/cgroup/gpucluster-hangs")
SLOW_S = 0.2
#: What a rank can be told to do.
GO_ON, SLEEPS, SLOW, BUSY_SLOW, OTHER, STALLS, DECODES, CHECKPOINT, EVALUATES, GENERATES, TINY, GRAPHS = range(12)


class Scenario(NamedTuple):
    """One training and what happens in it, one after the other: each fault or phase with its rank (-1: all)."""

    kind: str
    events: tuple[tuple[str, int], ...]


# --- a training -----


def plain(torch: Any, number: int, data: Iterator[Any] | None) -> Callable[[], None]:
    """Products of matrices, and an all_reduce of 256 MiB."""
    matrix = torch.randn(8192, 8192, device="cuda", dtype=torch.bfloat16)
    gradients = torch.ones(64 << 20, device="cuda")

    def step() -> None:
        for _ in range(4):
            matrix @ matrix
        torch.distributed.all_reduce(gradients)
        torch.cuda.synchronize()

    return step


def ddp(torch: Any, number: int, data: Iterator[Any] | None) -> Callable[[], None]:
    """DistributedDataParallel, with a data loader in processes of its own."""
    layers = [layer for _ in range(8) for layer in (torch.nn.Linear(8192, 8192), torch.nn.GELU())]
    model = torch.nn.Sequential(*layers).to("cuda", torch.bfloat16)
    if torch.distributed.is_initialized():
        model = torch.nn.parallel.DistributedDataParallel(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)
    batch = torch.randn(4096, 8192, device="cuda", dtype=torch.bfloat16)

    def step() -> None:
        if data is not None:
            batch[:64] = next(data).to("cuda")
        loss = model(batch).float().pow(2).mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        loss.item()

    return step


def compute(seconds: float) -> None:
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        pass


def loader(torch: Any, number: int, told: Any) -> Iterator[Any]:
    """Data from a process that stalls or computes when it is told so."""

    class Data(torch.utils.data.Dataset):  # type: ignore[misc]
        def __len__(self) -> int:
            return 1 << 30

        def __getitem__(self, _index: int) -> Any:
            while told[number] in (STALLS, DECODES):
                time.sleep(0.1) if told[number] == STALLS else compute(0.1)
            return torch.zeros(64, 8192, dtype=torch.bfloat16)

    return iter(torch.utils.data.DataLoader(Data(), batch_size=None, num_workers=1))


def phase(torch: Any, number: int, told: Any) -> None:
    """What this rank is told, in place of a step."""
    what = told[number]
    if what == SLEEPS:
        while told[number] == SLEEPS:
            time.sleep(0.1)
    elif what == SLOW:
        time.sleep(SLOW_S)
    elif what == BUSY_SLOW:
        compute(SLOW_S)
    elif what == OTHER:
        told[number] = GO_ON
        # It waits for what the other rank does not send: a small one has buffers of its own.
        torch.distributed.broadcast(torch.ones(256, device="cuda"), 1 - number)
    elif what == CHECKPOINT:
        state = {"model": torch.zeros(1 << 30, device="cuda", dtype=torch.bfloat16)}
        with tempfile.TemporaryDirectory() as folder:
            while told[number] == CHECKPOINT:
                with open(f"{folder}/state", "wb") as file:
                    torch.save({name: value.cpu() for name, value in state.items()}, file)
                    os.fsync(file.fileno())
    elif what in (EVALUATES, GENERATES, TINY, GRAPHS):
        evaluate(torch, number, told, what)


def evaluate(torch: Any, number: int, told: Any, what: int) -> None:
    """Work of one GPU: a large batch; one token after the other, which reads all weights; or small kernels."""
    sizes = {EVALUATES: (8192, 8192, 20), GENERATES: (1, 8192, 50), TINY: (64, 512, 200), GRAPHS: (64, 512, 200)}
    rows, size, times = sizes[what]
    given = torch.randn(rows, size, device="cuda", dtype=torch.bfloat16)
    weights = torch.randn(size, size, device="cuda", dtype=torch.bfloat16)

    def work() -> None:
        for _ in range(times):
            given @ weights

    work()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, capture_error_mode="thread_local"):
        work()
    while told[number] == what:
        for _ in range(50 if what == GRAPHS else 1):
            graph.replay() if what == GRAPHS else work()
        torch.cuda.synchronize()


def rank(number: int, world: int, gpu: int, kind: str, port: int, told: Any, steps: Any, group: str, log: str) -> None:
    """One process of a training."""
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    Path(group, "cgroup.procs").write_text("0")
    stream = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.dup2(stream, 1)
    os.dup2(stream, 2)
    import datetime

    import torch  # type: ignore[import-not-found]  # on the machine with GPUs

    data = loader(torch, number, told) if kind.startswith("ddp") else None
    if data is not None:
        next(data)
    torch.cuda.set_device(gpu)
    if world > 1:
        os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
        hours = datetime.timedelta(hours=2)
        torch.distributed.init_process_group("nccl", rank=number, world_size=world, timeout=hours)
    step = (ddp if kind.startswith("ddp") or world == 1 else plain)(torch, number, data)
    while True:
        if told[number] != GO_ON:
            phase(torch, number, told)
        step()
        steps[number] += 1


class Training:
    """A job that runs, with its watcher.

    Args:
        folder: for its files.
        arguments: of the watcher; without any there is none.
    """

    _number = 0

    def __init__(self, job: str, kind: str, gpus: Sequence[int], folder: Path, arguments: Sequence[str]) -> None:
        self.job, self.kind, self.gpus, self.folder, self.arguments = job, kind, gpus, folder, arguments
        world = len(gpus)
        self.told, self.steps = FORK.Array("i", world, lock=False), FORK.Array("q", world, lock=False)
        self.group = CGROUPS / f"job_{job}"
        self.ranks: list[Any] = []
        self.watcher: subprocess.Popen[bytes] | None = None
        self.seen_file = folder / f"{job}.seen.json"

    def __enter__(self) -> Training:
        self.group.mkdir(parents=True, exist_ok=True)
        Training._number += 1
        port = 29500 + Training._number
        log = str(self.folder / f"{self.job}.out")
        for number, gpu in enumerate(self.gpus):
            words = (number, len(self.gpus), gpu, self.kind, port, self.told, self.steps, str(self.group), log)
            self.ranks.append(FORK.Process(target=rank, args=words))
            self.ranks[-1].start()
        try:
            self.wait("the training begins", lambda: min(self.steps) > 3, START_S)
            if self.arguments:
                self.watch(self.arguments)
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_why: object) -> None:
        self.end_watch()
        for pid in [pid for each in self.ranks for pid in descendants(each.pid)]:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        for process in self.ranks:
            process.join()
        for _ in range(50):
            with contextlib.suppress(OSError):
                self.group.rmdir()
                return
            time.sleep(0.1)

    def watch(self, arguments: Sequence[str]) -> None:
        """Start the watcher, which knows nothing but this job."""
        jobs = self.folder / f"{self.job}.jobs"
        jobs.mkdir(exist_ok=True)
        content = {"version": 1, "job_id": self.job, "user": "root", "gpus": [str(gpu) for gpu in self.gpus]}
        (jobs / f"{self.job}.json").write_text(json.dumps(content))
        record = self.folder / f"{self.job}.looks.jsonl"
        argv = [sys.executable, __file__, "watch", str(record), "serve", f"--jobs={jobs}", f"--file={self.seen_file}"]
        with open(self.folder / f"{self.job}.watch", "ab") as log:
            self.watcher = subprocess.Popen([*argv, *arguments], stderr=log)

    def end_watch(self) -> None:
        if self.watcher is not None:
            self.watcher.kill()
            self.watcher.wait()
            self.watcher = None

    def seen(self) -> tuple[float, dict[str, Any]]:
        """When the watcher looked last, and what it reports of the job."""
        with contextlib.suppress(OSError, ValueError, IndexError):
            content = json.loads(self.seen_file.read_text())
            return content["at"], content["jobs"][0]
        return 0.0, {}

    def wait(self, what: str, condition: Callable[[], bool], seconds: float) -> None:
        until = time.monotonic() + seconds
        while not condition():
            if time.monotonic() > until:
                raise TimeoutError(f"{what}: not within {seconds:.0f} s")
            time.sleep(0.2)

    def goes_on(self, seconds: float = 30.0) -> None:
        """Wait until all ranks have made some more steps."""
        before = list(self.steps)
        self.wait(
            "the training goes on",
            lambda: all(now > old + 3 for now, old in zip(self.steps, before, strict=True)),
            seconds,
        )


def descendants(pid: int) -> list[int]:
    """A process and all that it has started, the innermost first."""
    found = []
    with contextlib.suppress(OSError):
        for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split():
            found += descendants(int(child))
    return [*found, pid]


def intruder(gpu: int, begun: Any) -> None:
    """A program that is not of the job, and computes on one of its GPUs."""
    import torch

    torch.cuda.set_device(gpu)
    matrix = torch.randn(8192, 8192, device="cuda", dtype=torch.bfloat16)
    while True:
        for _ in range(20):
            matrix @ matrix
        torch.cuda.synchronize()
        begun.value = begun.value or time.monotonic()


# --- faults -----

_TOLD = {
    "sleeps": SLEEPS, "slow": SLOW, "busy and slow": BUSY_SLOW, "other operation": OTHER, "data stalls": STALLS,
    "data is decoded": DECODES, "checkpoint": CHECKPOINT, "evaluates": EVALUATES, "generates": GENERATES,
    "small kernels": TINY, "graphs of kernels": GRAPHS, "nothing": GO_ON,
}  # fmt: skip
PHASES = {
    "nothing", "data stalls", "data is decoded", "checkpoint", "evaluates", "generates", "small kernels",
    "graphs of kernels",
}  # fmt: skip
_WANTED = {"slow": "straggling", "busy and slow": "straggling", "shared GPU": "straggling"}


@contextlib.contextmanager
def planted(training: Training, fault: str, number: int) -> Iterator[float]:
    """A fault in one rank; gives the moment at which it begins. It ends with the `with`, if it can."""
    pid = training.ranks[number].pid
    if fault in ("stopped", "killed"):
        os.kill(pid, signal.SIGSTOP if fault == "stopped" else signal.SIGKILL)
        yield time.monotonic()
        if fault == "stopped":
            os.kill(pid, signal.SIGCONT)
    elif fault == "shared GPU":
        begun = FORK.Value("d", 0.0)
        other = FORK.Process(target=intruder, args=(training.gpus[number], begun))
        other.start()
        try:
            training.wait("the other program begins", lambda: begun.value > 0, START_S)
            yield begun.value
        finally:
            other.kill()
            other.join()
    else:
        training.told[number] = _TOLD[fault]
        yield time.monotonic()
        training.told[number] = GO_ON


def right(training: Training, number: int, found: dict[str, Any]) -> bool:
    """Whether what the watcher reported names the guilty rank, its process or its GPU, and no other."""
    words, pid = found["words"], training.ranks[number].pid
    if found["rank"]:
        return bool(found["rank"] == str(number))
    return f"process {pid} " in words or f"GPU {training.gpus[number]} " in words


def fault(training: Training, name: str, number: int) -> dict[str, Any]:
    """Plant it, and wait for its name."""
    wanted = _WANTED.get(name, "hung")
    # The watcher has looked when it began, and looks every 15 s.
    training.end_watch()
    training.seen_file.unlink(missing_ok=True)
    training.watch(training.arguments)
    time.sleep(random.uniform(1.0, 15.0))
    before = list(training.steps)
    with planted(training, name, number) as begun:
        found: dict[str, Any] = {}
        at = 0.0
        while time.monotonic() < begun + LIMIT_S:
            at, found = training.seen()
            if at > begun and found.get("state") == wanted:
                break
            time.sleep(0.2)
        made = [now - old for now, old in zip(training.steps, before, strict=True)]
        said = found.get("state") == wanted
        return {
            "fault": name, "kind": training.kind, "rank": number, "job": training.job, "begun": begun,
            "found": said, "seconds": round(at - begun, 1) if said else None,
            "right": said and right(training, number, found), "state": found.get("state"), "words": found.get("words"),
            "named": found.get("rank"), "pid": training.ranks[number].pid, "steps": made,
        }  # fmt: skip


def healthy(training: Training, name: str, number: int) -> dict[str, Any]:
    """A phase of a healthy training: what the watcher reported in it, and just after it."""
    time.sleep(random.uniform(2.0, 5.0))
    told = [each for each in range(len(training.gpus)) if number in (each, -1)]
    for each in told:
        training.told[each] = _TOLD[name]
    states: dict[str, str] = {}
    begun = time.monotonic()

    def listen(seconds: float) -> None:
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            at, found = training.seen()
            if found and at > begun:
                states[found["state"]] = found["words"]
            time.sleep(0.5)

    listen(PHASE_S)
    for each in told:
        training.told[each] = GO_ON
    training.goes_on()
    listen(6)
    accused = bool({"hung", "straggling"} & states.keys())
    return {"phase": name, "kind": training.kind, "rank": number, "accused": accused, "states": states}


def run(scenario: Scenario, gpus: Sequence[int], folder: Path, job: str, arguments: Sequence[str]) -> Iterator[Any]:
    """The events of one training."""
    used = gpus[:1] if scenario.kind.endswith("single") else gpus
    with Training(job, scenario.kind, used, folder, arguments) as training:
        for name, number in scenario.events:
            is_phase = name in PHASES
            yield (healthy if is_phase else fault)(training, name, number)
            if not is_phase and (name, number) != scenario.events[-1]:
                training.goes_on()


def lane(gpus: Sequence[int], work: Any, results: Any, folder: Path, arguments: Sequence[str], until: float) -> None:
    """Trainings on some GPUs, one after the other, in a network of their own."""
    os.unshare(os.CLONE_NEWNET)  # type: ignore[attr-defined]  # since Python 3.12
    device = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    fcntl.ioctl(device, 0x8914, struct.pack("16sH", b"lo", 0x1 | 0x40))
    # With 127.0.0.1 alone, getaddrinfo reports that there is no IPv4.
    fcntl.ioctl(device, 0x8916, struct.pack("16sHH4s8x", b"lo:1", socket.AF_INET, 0, socket.inet_aton("192.0.2.1")))
    import torch  # noqa: F401 - the ranks are copies of this process, which then need not read it

    while time.monotonic() < until:
        try:
            number, scenario = work.get(timeout=0.5)
        except queue.Empty:
            break
        job = str(1000 + number)
        begun = time.monotonic()
        try:
            for result in run(scenario, gpus, folder, job, arguments):
                results.put(result)
                if time.monotonic() > until:
                    break
        except (TimeoutError, OSError) as error:
            tail = (folder / f"{job}.out").read_text(errors="replace")[-1500:]
            results.put({"error": f"{scenario}: {error}", "output": tail})
        results.put({"scenario": job, "took": round(time.monotonic() - begun, 1)})
    results.put(None)


def fault_plan() -> list[Scenario]:
    """40 faults: each kind as often in both ranks, and in both trainings."""
    found = []
    for number, kind in enumerate(["plain", "ddp"] * 2):
        one, two = (0, 1) if number < 2 else (1, 0)
        first = (("stopped", one), ("shared GPU", two), ("slow", one), ("sleeps", one), ("killed", two))
        then = (
            ("busy and slow", two),
            ("shared GPU", one),
            ("stopped", two),
            ("sleeps", two),
            ("other operation", one),
        )
        found += [Scenario(kind, first), Scenario(kind, then)]
    return found


def healthy_plan() -> list[Scenario]:
    """Phases that look like hangs."""
    return [
        Scenario("ddp", (("checkpoint", 0), ("graphs of kernels", 0), ("data is decoded", 1))),
        Scenario("ddp", (("data stalls", -1), ("generates", 0), ("evaluates", 1))),
        Scenario("ddp single", (("nothing", 0), ("data stalls", 0))),
        Scenario("plain", (("nothing", -1), ("checkpoint", 0))),
    ]


# --- cost -----


def cost(gpus: Sequence[int], folder: Path, arguments: Sequence[str], seconds: float, rounds: int) -> None:
    """Steps of a training on all GPUs."""
    speeds: dict[str, list[float]] = {}
    used: dict[str, list[float]] = {}
    ways: dict[str, Sequence[str]] = {"without": (), "every 15 s": arguments, "every second": [*arguments, "--often"]}
    with Training("900", "plain", gpus, folder, ()) as training:
        time.sleep(10)
        for number in range(rounds):
            for name, given in list(ways.items())[:: 1 if number % 2 else -1]:
                if given:
                    training.watch(given)
                    time.sleep(0.5)
                before, begun = training.steps[0], time.monotonic()
                ticks = spent(training.watcher.pid) if training.watcher else 0.0
                time.sleep(seconds)
                speeds.setdefault(name, []).append((training.steps[0] - before) / (time.monotonic() - begun))
                if training.watcher:
                    used.setdefault(name, []).append((spent(training.watcher.pid) - ticks) / seconds)
                training.end_watch()
    base = statistics.median(speeds["without"])
    for name, each in speeds.items():
        each_pair = [with_it / without - 1 for with_it, without in zip(each, speeds["without"], strict=True)]
        share = f"{statistics.median(used[name]):.2%} of a core" if name in used else ""
        print(
            f"{name:<14} {statistics.median(each):8.3f} steps/s, {statistics.median(each) / base - 1:+.3%}; pairs "
            f"{statistics.median(each_pair):+.3%} ({min(each_pair):+.3%} to {max(each_pair):+.3%}) {share}", flush=True,
        )  # fmt: skip


def spent(pid: int) -> float:
    """Processor seconds of a process and of those of its children that have ended."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return sum(map(int, fields[11:15])) / os.sysconf("SC_CLK_TCK")


# --- the programs -----


def watched(record: str, arguments: Sequence[str]) -> int:
    """The watcher itself, which also writes down what it has looked at."""
    advance, parse, ask = judge.advance, ras.parse, client.ask
    said: dict[str, str] = {}
    stream = open(record, "a", buffering=1)  # noqa: SIM115 - until the end

    def parsed(text: str) -> ras.RasAnswer:
        said["text"] = text
        return parse(text)

    def asked(*given: Any, **named: Any) -> ras.RasAnswer:
        begun = time.monotonic()
        try:
            return ask(*given, **named)
        except client.NoRasAnswer as error:
            said["fault"] = str(error)
            raise
        finally:
            said["took"] = f"{time.monotonic() - begun:.2f}"

    def recorded(
        memory: judge.JobMemory, look: judge.Look, limits: judge.Limits
    ) -> tuple[judge.JobMemory, judge.JobFinding]:
        kept, found = advance(memory, look, limits)
        line = {
            "at": look.at,
            "gpus": [[*each[:5], sorted(each.pids or ()), sorted(each.strangers)] for each in look.gpus],
            "processes": {pid: list(each) for pid, each in look.processes.items()},
            "said": said,
            "found": [found.state.value, found.words, found.rank and found.rank.rank],
        }
        stream.write(json.dumps(line) + "\n")
        said.clear()
        return kept, found

    judge.advance, ras.parse, client.ask = recorded, parsed, asked
    if "--often" in arguments:
        watch.INTERVAL_S = 0.1
        arguments = [each for each in arguments if each != "--often"]
    return watch.main(arguments)


def lanes(plan: Sequence[Scenario], gpus: Sequence[int], folder: Path, given: Any) -> list[dict[str, Any]]:
    """All of a plan, with a training on each pair of GPUs at a time."""
    work, results = FORK.Queue(), FORK.Queue()
    for each in enumerate(plan):
        work.put(each)
    until = time.monotonic() + given.seconds
    pairs = [gpus[start : start + 2] for start in range(0, len(gpus) - 1, 2)]
    arguments = [f"--hang={given.hang:g}"]
    started = [FORK.Process(target=lane, args=(pair, work, results, folder, arguments, until)) for pair in pairs]
    for process in started:
        process.start()
    found, left = [], len(started)
    while left:
        try:
            result = results.get(timeout=5)
        except queue.Empty:
            if not any(process.is_alive() for process in started):
                break
            continue
        left -= result is None
        if result is not None:
            print(json.dumps(result), flush=True)
            found.append(result)
    for process in started:
        process.join(timeout=10)
        process.kill()
    return found


def summary(found: Sequence[dict[str, Any]]) -> None:
    """A table of the faults."""
    for name in sorted({each["fault"] for each in found if "fault" in each}):
        own = [each for each in found if each.get("fault") == name]
        times = [each["seconds"] for each in own if each["found"]]
        spread = f"{min(times):.0f} / {statistics.median(times):.0f} / {max(times):.0f} s" if times else "-"
        print(
            f"{name:<18} planted {len(own):>2}, found {len(times):>2}, within 60 s "
            f"{sum(each <= 60 for each in times):>2}, right {sum(each['right'] for each in own):>2}, {spread}"
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["faults", "healthy", "cost"])
    parser.add_argument("--gpus", default="0,1")
    parser.add_argument("--hang", type=float, default=30.0)
    parser.add_argument("--seconds", type=float, default=3600.0, help="after which no fault is planted any more")
    parser.add_argument("--only", default="", help="scenarios with one of these words in their events")
    parser.add_argument("--rounds", type=int, default=6)
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    gpus = [int(each) for each in given.gpus.split(",")]
    # Where machines share switches, multicast of one can harm the others, too.
    os.environ["NCCL_NVLS_ENABLE"] = "0"
    folder = Path(tempfile.mkdtemp(prefix="hangs-"))
    try:
        if given.what == "cost":
            cost(gpus, folder, [f"--hang={given.hang:g}"], 5.0, given.rounds)
            return
        plan = fault_plan() if given.what == "faults" else healthy_plan()
        words = [each for each in given.only.split(",") if each]
        if words:
            plan = [
                each._replace(events=kept)
                for each in plan
                if (kept := tuple(event for event in each.events if event[0] in words))
            ]
        found = lanes(plan, gpus, folder, given)
        summary(found)
    finally:
        if given.out:
            given.out.mkdir(exist_ok=True)
            with (given.out / f"{given.what}.jsonl").open("w") as stream:
                for file in sorted(folder.glob("*.jsonl")):
                    stream.writelines(f"{file.name.partition('.')[0]} {line}" for line in file.open())
            with (given.out / f"{given.what}.log").open("w") as stream:
                for file in sorted([*folder.glob("*.watch"), *folder.glob("*.out")]):
                    stream.write(f"== {file.name}\n{file.read_text(errors='replace')[-6000:]}\n")
        shutil.rmtree(folder, ignore_errors=True)
        with contextlib.suppress(OSError):
            CGROUPS.rmdir()


if __name__ == "__main__":
    if sys.argv[1:2] == ["watch"]:
        sys.exit(watched(sys.argv[2], sys.argv[3:]))
    main()
