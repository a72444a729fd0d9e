"""The runner of `make test`: real pytest on small suites, with what a reader sees of them."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.long_tests import LONG
from tests.waiting import PATIENCE_S, wait_for
from tools import suite
from tools.suite import Case, Result, Stage

pytestmark = pytest.mark.slow

GOOD = "def test_good():\n    pass\n"
BAD = """\
import pytest

class Cluster:
    def __init__(self, folder):
        self.folder = folder

@pytest.fixture
def cluster(tmp_path):
    (tmp_path / "runs").mkdir()
    (tmp_path / "runs" / "apply").write_text("the disk is full\\n")
    (tmp_path / "server.log").write_text("it was asked\\n")
    (tmp_path / "operator_key.log").write_text("a private key\\n")
    return Cluster(tmp_path)

def test_bad(cluster):
    assert 1 + 1 == 3, "sums are wrong"

def test_left_out():
    pytest.skip("this machine has no moon")
"""
BUSY = """\
import time

def test_busy():
    end = time.process_time() + 0.3
    while time.process_time() < end:
        pass
"""
TEXTS = {"one": BAD, "two": GOOD}
#: This project's conftest, which keeps what explains a failure, without its pytest options.
PYTEST = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-c", "/dev/null", "-p", "tests.conftest"]


def stage(folder: Path, name: str, text: str) -> Stage:
    file = folder / f"test_{name}.py"
    file.write_text(text)
    return Stage(name, [*PYTEST, str(file)])


def test_a_failure_is_explained_in_a_folder_and_at_the_end(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "results"
    (folder / "failures").mkdir(parents=True)
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    results = suite.run([stage(tmp_path, name, text) for name, text in TEXTS.items()], folder, temporary)
    assert [result.status for result in results] == [1, 0]
    printed = capfd.readouterr().out
    assert re.search("^one: .*sums are wrong", printed, re.MULTILINE)
    assert re.search("^two: .*1 passed", printed, re.MULTILINE)
    assert "sums are wrong" in (folder / "one.log").read_text()
    kept = {file.name: file.read_text() for file in (folder / "failures").rglob("*") if file.is_file()}
    assert kept.pop("failure.txt").startswith("test_one.py::test_bad")
    assert kept == {"apply": "the disk is full\n", "server.log": "it was asked\n"}
    (kept_folder,) = (folder / "failures").iterdir()
    (kept_folder / "host.journal.log").write_text("the host was asked afterwards\n")
    shown = "\n".join(suite.ends(folder / "failures"))
    assert "the disk is full" in shown.partition("the host was asked afterwards")[0]
    said = list(suite.summary(results, folder))
    assert said[-1] == "2 passed, 1 failed, 1 skipped".replace("2", "1")
    assert said[-2].endswith("test_one::test_bad: AssertionError: sums are wrong")
    text = "\n".join(said)
    assert re.search(
        r"AssertionError: sums are wrong\n +assert \(1 \+ 1\) == 3\n +\S*test_one.py:16: AssertionError", text
    )
    assert "this machine has no moon" in text
    assert str(folder / "failures") in text
    assert re.search(r"^one +FAILED \(1\)", text, re.MULTILINE)
    assert re.search(r"^two +passed", text, re.MULTILINE)


def test_a_stage_that_fails_does_not_keep_the_others_from_running(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    plan = [[Stage("checks", ["sh", "-c", "echo style is bad; exit 2"], tests=False)], [stage(tmp_path, "tests", GOOD)]]
    monkeypatch.setattr(suite, "stages", lambda _order, *, everything: plan)
    monkeypatch.setattr(suite, "RESULTS", tmp_path / "results")
    assert suite.main([]) == 1
    said = capfd.readouterr().out
    assert "style is bad" in said
    # What failed without a test counts as well.
    assert said.splitlines()[-1] == "1 passed, 1 failed, 0 skipped"
    monkeypatch.setattr(suite, "stages", lambda _order, *, everything: plan[1:])
    assert suite.main([]) == 0


def test_stages_of_a_group_run_at_the_same_time(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    # Each ends after the other has begun: one after the other, the first would never end.
    pipes = [str(tmp_path / name) for name in ("one", "two")]
    for pipe in pipes:
        os.mkfifo(pipe)
    meet = "echo here > {}; cat < {}"
    group = [
        Stage("one", ["sh", "-c", meet.format(*pipes)], tests=False),
        Stage("two", ["sh", "-c", f"cat < {pipes[0]}; echo there > {pipes[1]}"], tests=False),
    ]
    results = suite.run(group, tmp_path, tmp_path)
    assert [result.status for result in results] == [0, 0]
    assert sorted(capfd.readouterr().out.splitlines()) == ["one: there", "two: here"]


WAITS = """\
import signal
from pathlib import Path

import pytest

@pytest.fixture
def made():
    yield
    print("removed")

def test_waits(made):
    Path(__file__).with_name("begun").touch()
    signal.pause()
"""
#: What is checked without pytest.
CHECKS = 'touch "$(dirname "$0")/begun"\nexec tail -f /dev/null\n'
#: The suite with a stage that waits and one after it, in a process of its own; its arguments: the folder, and the file.
ALONE = """
import sys
from pathlib import Path
from tests.tools.test_suite import PYTEST
from tools import suite
folder, file = map(Path, sys.argv[1:])
suite.RESULTS = folder / "results"
waits = [*PYTEST, "-s", str(file)] if file.suffix == ".py" else ["sh", str(file)]
later = suite.Stage("later", ["touch", str(folder / "later")], tests=False)
suite.stages = lambda _order, *, everything: [[suite.Stage("waits", waits, tests=file.suffix == ".py")], [later]]
sys.exit(suite.main([]))
"""


@pytest.mark.parametrize("sent", [signal.SIGTERM, signal.SIGINT])
@pytest.mark.parametrize(("name", "text", "last"), [("test_waits.py", WAITS, "removed"), ("checks.sh", CHECKS, "")])
def test_who_ends_the_suite_alone_ends_its_stage_and_no_other_begins(
    tmp_path: Path, name: str, text: str, last: str, sent: signal.Signals
) -> None:
    file, begun = tmp_path / name, tmp_path / "begun"
    file.write_text(text)
    child = subprocess.Popen(
        [sys.executable, "-c", ALONE, str(tmp_path), str(file)], cwd=suite.ROOT, stdout=subprocess.PIPE, text=True,
        env={**os.environ, "PYTHONPATH": str(suite.ROOT)}, start_new_session=True,
    )  # fmt: skip
    wait_for("its test has begun, or it has ended", lambda: begun.exists() or child.poll() is not None)
    if sent == signal.SIGINT:
        os.killpg(child.pid, sent)  # as a terminal does
    else:
        child.send_signal(sent)
    said, _ = child.communicate(timeout=PATIENCE_S)
    assert child.returncode == 130, said
    assert last in said
    assert not (tmp_path / "later").exists()


@pytest.mark.parametrize("sent", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_that_comes_while_a_stage_is_started_ends_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, sent: signal.Signals
) -> None:
    def start(*args: Any, **options: Any) -> subprocess.Popen[str]:
        child: subprocess.Popen[str] = popen(*args, **options)
        os.kill(os.getpid(), sent)
        return child

    popen = subprocess.Popen
    monkeypatch.setattr("subprocess.Popen", start)
    waits = Stage("waits", ["tail", "-f", "/dev/null"], tests=False)
    [result] = suite.run([waits], tmp_path, tmp_path)
    assert result.interrupted


def test_no_stage_takes_what_a_machine_with_little_memory_lacks(monkeypatch: pytest.MonkeyPatch) -> None:
    for gigabytes, expected in ((4, 2), (8, 4), (64, suite.WORKERS)):
        sizes = {"SC_PHYS_PAGES": gigabytes * 2**18, "SC_PAGE_SIZE": 4096}
        monkeypatch.setattr("os.sysconf", sizes.__getitem__)
        for everything in (True, False):
            parts = suite.stages("", everything=everything)[-1]
            numbers = [int(part.argv[part.argv.index("-n") + 1]) for part in parts]
            assert sum(numbers) == expected
            assert min(numbers) >= 1


def test_each_test_belongs_to_one_stage() -> None:
    makefile = (suite.ROOT / "Makefile").read_text()
    assert f"FAST := {suite.FAST}\n" in makefile
    whole = [suite.FAST, f"not e2e and not ({suite.FAST})", "e2e"]
    assert _chosen(suite.stages("", everything=True)) == whole
    # No fast test is long.
    assert _chosen(suite.stages("")) == [suite.FAST, f"not ({suite.FAST}) and not long"]


def _chosen(groups: list[list[Stage]]) -> list[str]:
    """What the stages with tests give pytest as its expression of marks; "e2e": the folder alone."""
    options = [part.argv for group in groups for part in group if part.tests]
    return [argv[argv.index("-m", 3) + 1] if "-m" in argv[3:] else "e2e" for argv in options]


def test_what_is_long_is_found_by_pytest_and_is_no_fast_test() -> None:
    assert not _collected(f"{suite.LONG} and ({suite.FAST})")
    found = _collected(suite.LONG)
    # Each entry is a file, a test, or a case of one that pytest finds.
    missing = {name for name in LONG if not any(_is_part(each, name) for each in found)}
    assert not missing


def _collected(marks: str) -> list[str]:
    """The tests of the files with long tests that have these marks, below the folder of tests."""
    files = [f"tests/{file}" for file in {name.partition("::")[0] for name in LONG}]
    argv = [sys.executable, "-m", "pytest", "-n", "0", "--collect-only", "-m", marks, *files]
    done = subprocess.run(argv, cwd=suite.ROOT, capture_output=True, text=True, timeout=PATIENCE_S, check=False)
    assert done.returncode in (pytest.ExitCode.OK, pytest.ExitCode.NO_TESTS_COLLECTED), done.stdout + done.stderr
    return [line.strip().removeprefix("tests/") for line in done.stdout.splitlines() if "::" in line]


def _is_part(found: str, name: str) -> bool:
    """Whether a test that pytest found is meant by an entry. A class may stand between its file and its name."""
    file, _, test = name.partition("::")
    return found.startswith(f"{file}::") and (not test or found.endswith(f"::{test}") or f"::{test}[" in found)


def test_the_last_runs_are_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(suite, "RESULTS", tmp_path)
    for number in range(9):
        (tmp_path / f"2026-01-0{number + 1}").mkdir()
    made = suite.new_folder()
    assert len(list(tmp_path.iterdir())) == suite.KEPT_RUNS
    assert (made / "failures").is_dir()
    assert not (tmp_path / "2026-01-01").exists()


def test_a_stage_that_never_came_to_its_tests_is_a_failure(tmp_path: Path) -> None:
    result = Result(Stage("tests", []), 4, 1.0, suite.read_junit(tmp_path / "missing.xml"))
    assert list(suite.summary([result], tmp_path))[-1] == "0 passed, 1 failed, 0 skipped"


def test_a_test_that_passed_and_failed_at_its_end_has_failed(tmp_path: Path) -> None:
    file = tmp_path / "junit.xml"
    file.write_text(
        '<testsuites><testsuite><testcase classname="tests.a" name="t" time="1"/><testcase classname="tests.a" '
        'name="t" time="1"><error message="left over&#10;more"/></testcase></testsuite></testsuites>'
    )
    assert suite.read_junit(file) == [Case("tests/a::t", 1.0, "failed", "left over")]


def test_order_of_any_seed_runs_every_test_and_stories_in_theirs(tmp_path: Path) -> None:
    (tmp_path / "test_story.py").write_text(
        "import pytest\npytestmark = pytest.mark.story\n" + "".join(f"def test_{n}(): pass\n" for n in range(6))
    )
    (tmp_path / "test_free.py").write_text("".join(f"def test_{n}(): pass\n" for n in range(6)))
    found = set()
    for seed in ("one", "two", "three"):
        done = subprocess.run(
            [*PYTEST, "-q", "--collect-only", f"--order={seed}", str(tmp_path)],
            cwd=suite.ROOT, capture_output=True, text=True, timeout=PATIENCE_S, check=True,
        )  # fmt: skip
        lines = [line.split("/")[-1] for line in done.stdout.splitlines() if "::" in line]
        assert len(lines) == 12
        assert [line for line in lines if "story" in line] == [f"test_story.py::test_{n}" for n in range(6)]
        found.add(tuple(lines))
    assert len(found) == 3


@pytest.mark.parametrize(("mark", "counts"), [("story", [0, 2, 3]), ("slow", [3, 2, 0])])
def test_the_rest_of_a_story_is_left_out_after_two_failures(tmp_path: Path, mark: str, counts: list[int]) -> None:
    text = f"import pytest\npytestmark = pytest.mark.{mark}\n" + "".join(
        f"def test_{number}(): assert {number > 1}\n" for number in range(5)
    )
    [result] = suite.run([stage(tmp_path, "chapters", text)], tmp_path, tmp_path)
    assert [result.count(outcome) for outcome in ("passed", "failed", "skipped")] == counts
    reasons = {case.reason for case in result.cases if case.outcome == "skipped"}
    assert reasons <= {"chapters before this one failed: test_0, test_1"}


def test_the_summary_names_the_files_that_keep_a_processor_busy(tmp_path: Path) -> None:
    (tmp_path / "failures").mkdir()
    results = suite.run([stage(tmp_path, "busy", BUSY), stage(tmp_path, "idle", GOOD)], tmp_path, tmp_path)
    used = {case.file.rpartition("/")[2]: case.processor_seconds for result in results for case in result.cases}
    assert used["test_busy"] >= 0.3 > used["test_idle"]
    lines = list(suite.summary(results, tmp_path))
    [heading] = [number for number, line in enumerate(lines) if "used a processor longest" in line]
    assert [Path(line).name.split()[-1] for line in lines[heading + 1 : heading + 3]] == ["test_busy", "test_idle"]
