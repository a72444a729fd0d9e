"""`make test`: every stage to its end, whatever failed beside or before it, and one summary that names everything.

    python -m tools.suite                       all stages, without the tests that tests/long_tests.py names
    python -m tools.suite --all                 all stages with every test: `make test-all`
    python -m tools.suite --files tests/spec    these tests only
    python -m tools.suite --changed             the tests that reach what differs from the main branch
    python -m tools.suite --changed HEAD~1      ... from a commit

Results are in .test-results/<time>/: what each stage printed, junit files, and for each failed test a folder with its
logs and the journals of its containers. The last five runs are kept.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from xml.etree import ElementTree

from tools import affected, leftovers

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / ".test-results"
EVIDENCE = "GPUCLUSTER_TEST_EVIDENCE"
KEPT_RUNS = 5
#: Tests at a time on two processors: those of daemons, of Slurm and of machines that boot mostly wait, and so do whole
#: clusters half of the time. With eight, the processors were never idle, twenty programs waited for one, and daemons
#: gave up what they had waited for. Where memory is short, fewer.
WORKERS = 6
#: What `make check` runs: no container, no daemon, nothing that takes seconds.
FAST = "not slow and not containers and not slurm and not e2e"
#: The mark of tests that `make test` leaves out.
LONG = "long"
_BYTES_OF_A_WORKER = 2 * 2**30
SLOWEST = 30
BUSIEST = 30
REASON_LINES, REASON_LENGTH = 8, 1500
_SHORT_FAILURES, _SHORT_LENGTH = 3, 250
_END_LINES, _END_FILES = 60, 6
_PYTEST = [sys.executable, "-m", "pytest", "-rfE", "--dist", "loadgroup", "-n"]
_INTERRUPTED = 2  # of pytest


@dataclass(frozen=True)
class Stage:
    """One part of the suite: a command, and whether it is pytest's."""

    name: str
    argv: Sequence[str]
    tests: bool = True


@dataclass(frozen=True)
class Case:
    """A test as junit reports it.

    Args:
        outcome: passed, failed or skipped. `reason`: why, in a few lines.
        processor_seconds: of the test and of the programs that it waited for, without containers.
    """

    name: str
    seconds: float
    outcome: str
    reason: str = ""
    processor_seconds: float = 0.0

    @property
    def file(self) -> str:
        """The file of the test."""
        return self.name.partition("::")[0]


@dataclass
class Result:
    """How a stage ended."""

    stage: Stage
    status: int
    seconds: float
    cases: list[Case] = field(default_factory=list)
    stopped: bool = False

    @property
    def passed(self) -> bool:
        """Whether nothing of it failed."""
        return self.status == 0

    @property
    def interrupted(self) -> bool:
        """Whether Ctrl-C or SIGTERM ended it: no further stage begins then."""
        return self.stopped or (self.stage.tests and self.status == _INTERRUPTED)

    def count(self, outcome: str) -> int:
        """How many of its tests ended so."""
        return sum(case.outcome == outcome for case in self.cases)


def stages(order: str, *, everything: bool = False) -> list[list[Stage]]:
    """The suite, as groups that follow each other; the stages of a group run at the same time.

    Args:
        order: a seed, or empty. `everything`: with the tests that `make test` leaves out.

    First what needs no machine, beside it the images that tests boot: a test that had to wait until one is made would
    wait for minutes, and making them uses one processor. Then single parts and whole clusters at the same time: while
    clusters wait, parts use the processors. With every test they are two stages, because six clusters at a time
    are too much.
    """
    options = [f"--order={order}"] if order else []
    number = workers()
    first = [
        Stage("checks", ["make", "--no-print-directory", "lint"], tests=False),
        Stage("images", [sys.executable, "-m", "tools.images"], tests=False),
        Stage("fast tests", [*_PYTEST, "2", *options, "-m", FAST, "--ignore=tests/e2e"]),
    ]
    if not everything:
        return [first, [Stage("tests", [*_PYTEST, str(number), *options, "-m", f"not ({FAST}) and not {LONG}"])]]
    clusters = max(number // 2, 1)
    parts = [
        *_PYTEST,
        str(max(number - clusters, 1)),
        *options,
        "-m",
        f"not e2e and not ({FAST})",
        "--ignore=tests/e2e",
    ]
    whole = [*_PYTEST, str(clusters), *options, "tests/e2e"]
    return [first, [Stage("tests", parts), Stage("clusters", whole)]]


def chosen(files: Sequence[str]) -> list[list[Stage]]:
    """Some tests. One file runs in one process: its output is easier to read."""
    number = 0 if len(files) == 1 and files[0].endswith(".py") else workers()
    return [[Stage("chosen tests", [*_PYTEST, str(number), *files])]]


def workers() -> int:
    """How many tests run at a time on this machine."""
    memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return min(WORKERS, max(memory // _BYTES_OF_A_WORKER, 1))


def run(group: Sequence[Stage], folder: Path, temporary: Path) -> list[Result]:
    """Run stages at the same time, each to its end; what they print is shown and kept.

    Args:
        folder: where results are written.
        temporary: the run's own folder for temporary files.
    """
    running: list[_Running] = []
    begun = False
    ended_by: list[int] = []

    def interrupt(number: int, _: object) -> None:
        ended_by.append(number)
        if begun:
            _stop(running, number)

    before = {number: signal.signal(number, interrupt) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        for stage in group:
            running.append(_Running(stage, folder, temporary, alone=len(group) == 1))
        begun = True
        # A stage that was being started when a signal came is in the list only now.
        if ended_by:
            _stop(running, signal.SIGTERM)
        return [each.result() for each in running]
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _stop(running: Iterable[_Running], number: int) -> None:
    """End stages, which remove what their tests made.

    Ctrl-C reaches them as well as this process, and a second one would end that removal. SIGTERM, as of a CI that
    cancels a run, reaches this process alone.
    """
    for each in running:
        each.interrupt(tell=number != signal.SIGINT)


class _Running:
    """A stage that has been started. With others beside it, each line that is shown begins with its name."""

    def __init__(self, stage: Stage, folder: Path, temporary: Path, *, alone: bool) -> None:
        name = stage.name.replace(" ", "-")
        self._stage = stage
        self._junit = folder / f"{name}.xml"
        # One letter: paths of sockets lie in it, and they have to be short.
        options = [f"--junitxml={self._junit}", f"--basetemp={temporary / name[0]}"]
        self._began = self._ended = time.monotonic()
        self._stopped = False
        self._child = subprocess.Popen(
            [*stage.argv, *options] if stage.tests else list(stage.argv),
            cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace",
            env={
                **os.environ, EVIDENCE: str(folder / "failures"), "TMPDIR": str(temporary),
                "XDG_RUNTIME_DIR": str(leftovers.runtime_folder(temporary)),
            },
        )  # fmt: skip
        self._copying = threading.Thread(target=self._copy, args=(folder / f"{name}.log", "" if alone else f"{name}: "))
        self._copying.start()

    def _copy(self, log: Path, mark: str) -> None:
        assert self._child.stdout is not None
        with log.open("w", buffering=1) as kept:
            for line in self._child.stdout:
                kept.write(line)
                sys.stdout.write(mark + line)  # at once: lines of stages do not mix
                sys.stdout.flush()
        self._ended = time.monotonic()

    def interrupt(self, *, tell: bool) -> None:
        """Count it as stopped, and end it as Ctrl-C does unless it has been told."""
        self._stopped = True
        if tell and self._child.poll() is None:
            self._child.send_signal(signal.SIGINT)

    def result(self) -> Result:
        """Wait for the end."""
        status = self._child.wait()
        self._copying.join()
        cases = read_junit(self._junit) if self._stage.tests else []
        return Result(self._stage, status, self._ended - self._began, cases, self._stopped)


def read_junit(file: Path) -> list[Case]:
    """The tests of a junit file, each once; none where the file is missing, because the stage did not come so far."""
    if not file.is_file():
        return []
    found: dict[str, Case] = {}
    for element in ElementTree.parse(file).iter("testcase"):  # noqa: S314 - pytest has written it
        name = f"{element.get('classname', '').replace('.', '/')}::{element.get('name')}"
        outcome, reason = "passed", ""
        for kind, word in (("failure", "failed"), ("error", "failed"), ("skipped", "skipped")):
            part = element.find(kind)
            if part is not None:
                outcome, reason = word, next(iter((part.get("message") or "").splitlines()), "")
                if word == "failed":
                    reason = _explained(part.text or "") or reason
                break
        earlier = found.get(name)
        if earlier is None or earlier.outcome == "passed":  # a test that passed and failed at its end is listed twice
            used = element.find("properties/property[@name='processor_seconds']")
            processor = float(used.get("value", 0)) if used is not None else 0.0
            found[name] = Case(name, float(element.get("time", 0)), outcome, reason, processor)
    return list(found.values())


def _explained(report: str) -> str:
    """What a failed test's report shows of why and where: a reader of the end of a log sees nothing else of it."""
    lines = report.rstrip().splitlines()
    why = [line[1:].strip()[:REASON_LENGTH] for line in lines if line.startswith("E  ")][:REASON_LINES]
    where = [line.strip() for line in lines if re.match(r"\S+:\d+: ", line)][-1:]
    return "\n".join((*why, *where))


def summary(results: Iterable[Result], folder: Path) -> Iterator[str]:
    """The end of the run, for a reader who sees nothing else."""
    results = list(results)
    cases = [case for result in results for case in result.cases]
    slowest = sorted(cases, key=lambda case: -case.seconds)[:SLOWEST]
    if len(results) > 1:
        yield f"The {len(slowest)} slowest tests:"
        yield from (f"{case.seconds:8.1f} s  {case.name}" for case in slowest)
        yield from _busiest(cases)
    yield from _skipped(cases)
    failed = [case for case in cases if case.outcome == "failed"]
    if failed:
        yield "Failed:"
        for case in failed:
            yield f"  {case.name}"
            yield from (f"      {line}" for line in case.reason.splitlines())
        yield f"What explains a failure is in {folder / 'failures'}"
    yield ""
    for result in results:
        word = "passed" if result.passed else f"FAILED ({result.status})"
        counts = f"{result.count('passed')} passed, {result.count('failed')} failed, {result.count('skipped')} skipped"
        yield f"{result.stage.name:14} {word:12} {result.seconds:6.0f} s  {counts if result.stage.tests else ''}"
    totals = {word: sum(case.outcome == word for case in cases) for word in ("passed", "failed", "skipped")}
    # Again, in short: some readers of a log see its last lines alone.
    for case in failed[:_SHORT_FAILURES]:
        yield f"{case.name}: {case.reason.partition(chr(10))[0]}"[:_SHORT_LENGTH]
    # A stage that failed without a failed test is a failure, too.
    silent = sum(not result.passed and not result.count("failed") for result in results)
    yield f"{totals['passed']} passed, {totals['failed'] + silent} failed, {totals['skipped']} skipped"


def _busiest(cases: Iterable[Case]) -> Iterator[str]:
    used: dict[str, float] = {}
    for case in cases:
        used[case.file] = used.get(case.file, 0.0) + case.processor_seconds
    files = sorted(used, key=lambda file: -used[file])[:BUSIEST]
    yield f"The {len(files)} files that used a processor longest, of {sum(used.values()):.0f} s without containers:"
    yield from (f"{used[file]:8.1f} s  {file}" for file in files)


def _skipped(cases: Iterable[Case]) -> Iterator[str]:
    reasons: dict[str, int] = {}
    for case in cases:
        if case.outcome == "skipped":
            reasons[case.reason] = reasons.get(case.reason, 0) + 1
    if reasons:
        yield "Not run:"
        yield from (f"{number:4}  {reason}" for reason, number in sorted(reasons.items()))


def ends(folder: Path) -> Iterator[str]:
    """The last lines of what failed tests left: enough to understand most failures.

    What the programs themselves wrote comes before what containers were asked afterwards, each newest first.
    """
    for test in sorted(folder.iterdir()) if folder.is_dir() else ():
        files = [file for file in test.rglob("*") if file.is_file() and file.name != "failure.txt"]
        files.sort(key=lambda file: (file.parent != test, file.stat().st_mtime), reverse=True)
        for file in files[:_END_FILES]:
            lines = file.read_text(errors="replace").splitlines()
            if lines:
                yield f"--- {file.relative_to(folder)} ({len(lines)} lines)"
                yield from (line[:300] for line in lines[-_END_LINES:])


def new_folder() -> Path:
    """The folder of this run; the oldest ones go."""
    RESULTS.mkdir(exist_ok=True)
    older = sorted(RESULTS.iterdir())
    for folder in older[: max(0, len(older) - KEPT_RUNS + 1)]:
        shutil.rmtree(folder, ignore_errors=True)
    folder = Path(tempfile.mkdtemp(prefix=time.strftime("%Y-%m-%dT%H%M%S-"), dir=RESULTS))
    (folder / "failures").mkdir()
    return folder


def main(words: list[str]) -> int:
    """Run the suite. Returns 0 if everything passed, 1 if not, 130 after Ctrl-C or SIGTERM."""
    parser = argparse.ArgumentParser(prog="make test", description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--files", nargs="+", default=[])
    parser.add_argument("--changed", nargs="?", const="", default=None)
    parser.add_argument("--all", action="store_true", help="the tests that take longest as well")
    parser.add_argument("--order", default="", help="a seed: files and the tests in them run in another order")
    options = parser.parse_args(words)
    if options.changed is not None:
        plan = _reached(options.changed, options.order)
    else:
        plan = chosen(options.files) if options.files else stages(options.order, everything=options.all)
    folder = new_folder()
    results: list[Result] = []
    with leftovers.own_folder() as temporary:
        for group in plan:
            results += run(group, folder, temporary)
            if any(result.interrupted for result in results):
                break
        results.append(_left_nothing(temporary))
    short = not (options.all or options.files or options.changed is not None)
    left_out = ["Left out: what tests/long_tests.py names. make test-all runs it, too."] if short else []
    print(*ends(folder / "failures"), *left_out, *summary(results, folder), sep="\n")
    if any(result.interrupted for result in results):
        return 130
    return 0 if all(result.passed for result in results) else 1


def _left_nothing(temporary: Path) -> Result:
    """The last stage: what the others have left on this machine. It is a failure, and it is removed."""
    began = time.monotonic()
    found = [Case(line, 0.0, "failed", "it was left over") for line in leftovers.left(temporary)]
    leftovers.remove(temporary)
    return Result(Stage("leftovers", [], tests=False), int(bool(found)), time.monotonic() - began, found)


def _reached(base: str, order: str) -> list[list[Stage]]:
    tests = affected.tests(ROOT, base)
    if tests is None:
        print("what changed concerns every test: all of them run")
        return stages(order, everything=True)
    print(f"{len(tests)} test files and folders reach what changed" if tests else "no test reaches what changed")
    return chosen(tests) if tests else []


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
