"""The ledger: committed data survives any kill, and a failed write is never taken for a successful one."""

from __future__ import annotations

import itertools
import json
import os
import signal
import sqlite3
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpucluster.autoscaler.daemon import ledger as module
from gpucluster.autoscaler.daemon.ledger import FILE, Ledger, LedgerError, LedgerEvent
from gpucluster.autoscaler.decide.types import (
    ClaimState,
    CoolDown,
    Delay,
    Fault,
    GangHistory,
    Launch,
    Memory,
    NodeClaim,
    Note,
    PowerDown,
    ScalingPlan,
    Terminate,
)
from gpucluster.errors import LockedError
from tests.examples import examples
from tests.processor import growth

# What SQLite keeps as text: everything but lone halves of characters.
WORDS = st.text(st.characters(codec="utf-8"), max_size=12)
NUMBERS = st.floats(allow_nan=False)
COUNTS = st.integers(-(10**20), 10**20)


def record(kind: type) -> st.SearchStrategy[Any]:
    hints = module._hints(kind)
    plain: dict[Any, st.SearchStrategy[Any]] = {
        str: WORDS,
        float: NUMBERS,
        int: COUNTS,
        bool: st.booleans(),
        ClaimState: st.sampled_from(ClaimState),
    }
    plain |= {Fault: st.sampled_from(Fault), Fault | None: st.sampled_from([None, *Fault])}
    return st.builds(
        kind, **{name: plain[hint] if hint in plain else st.lists(WORDS).map(tuple) for name, hint in hints.items()}
    )


MEMORIES = st.builds(
    Memory,
    id=WORDS.filter(bool),
    claims=st.dictionaries(WORDS, record(NodeClaim), max_size=4),
    gangs=st.dictionaries(WORDS, record(GangHistory), max_size=4),
    cool_downs=st.dictionaries(WORDS, record(CoolDown), max_size=3),
    launched_at=st.lists(NUMBERS, max_size=5).map(tuple),
    boot_failures=st.dictionaries(WORDS, COUNTS, max_size=3),
    boot_causes=st.dictionaries(WORDS, WORDS, max_size=3),
    orphans_seen=st.dictionaries(WORDS, NUMBERS, max_size=3),
    node_count=COUNTS,
    paused=WORDS,
)


def claim(name: str = "gpu-e1", **changes: Any) -> NodeClaim:
    return replace(NodeClaim(name, "gpu", 1, "token", ClaimState.INTENDED, 5.0, 5.0), **changes)


def reopened(directory: Path) -> Memory:
    with Ledger(directory) as ledger:
        return ledger.load()


@contextmanager
def scratch() -> Iterator[Path]:
    with tempfile.TemporaryDirectory() as folder:
        yield Path(folder)


@given(steps=st.lists(MEMORIES, min_size=1, max_size=4))
@examples(60)
def test_what_is_committed_is_loaded(steps: list[Memory]) -> None:
    with scratch() as directory:
        with Ledger(directory) as ledger:
            for memory in steps:
                ledger.commit(memory)
                assert ledger.load() == memory
        assert reopened(directory) == steps[-1]


def test_a_claim_without_a_fault_is_stored_with_an_empty_one(tmp_path: Path) -> None:
    with Ledger(tmp_path) as ledger:
        ledger.commit(replace(ledger.load(), claims={"gpu-e1": claim(), "gpu-e2": claim("gpu-e2", fault=Fault.LIMIT)}))
        assert ledger._database is not None
        rows = ledger._database.execute("SELECT value FROM memory WHERE field = 'claims' ORDER BY key").fetchall()
        assert [json.loads(text)["fault"] for (text,) in rows] == ["", "limit"]
    assert [one.fault for one in reopened(tmp_path).claims.values()] == [None, Fault.LIMIT]


def test_a_new_ledger_has_an_id_of_its_own_and_is_for_its_owner_only(tmp_path: Path) -> None:
    first, second = tmp_path / "a" / "b", tmp_path / "c"
    assert reopened(first) == Memory(reopened(first).id)
    assert reopened(first).id != reopened(second).id
    assert (first.stat().st_mode & 0o777, (first / FILE).stat().st_mode & 0o777) == (0o700, 0o600)


def test_what_writing_costs_grows_with_the_claims_and_no_faster(tmp_path: Path) -> None:
    numbers = itertools.count(1)
    with Ledger(tmp_path) as ledger:

        def work(count: int) -> Callable[[], object]:
            names = [f"gpu-e{n}" for n in range(1, count + 1)]

            def commit() -> None:
                now = float(next(numbers))
                ledger.commit(replace(ledger.load(), claims={name: claim(name, since=now) for name in names}))

            return commit

        assert growth(work, 300, 3_000) < 30


def test_only_what_changed_is_written(tmp_path: Path) -> None:
    with Ledger(tmp_path) as ledger:
        memory = replace(ledger.load(), claims={f"gpu-e{n}": claim(f"gpu-e{n}") for n in range(1, 1_001)})
        ledger.commit(memory)
        statements: list[str] = []
        assert ledger._database is not None
        ledger._database.set_trace_callback(statements.append)
        ledger.commit(memory)
        assert statements == []
        changed = dict(memory.claims)
        del changed["gpu-e1"]
        changed["gpu-e2"] = claim("gpu-e2", state=ClaimState.LAUNCHED, instance_id="ocid1")
        ledger.commit(replace(memory, claims=changed))
        rows = [line for line in statements if "memory" in line]
        assert len(rows) == 2
        assert statements[0] == "BEGIN IMMEDIATE"
    assert reopened(tmp_path).claims == changed


@pytest.mark.parametrize("damage", ["garbage", "truncated", "middle", "no id", "unknown state", "version"])
def test_a_broken_file_is_set_aside_and_a_new_one_begun(tmp_path: Path, damage: str) -> None:
    with Ledger(tmp_path) as ledger:
        old = replace(ledger.load(), claims={f"gpu-e{n}": claim(f"gpu-e{n}") for n in range(200)})
        ledger.commit(old)
    file = tmp_path / FILE
    content = file.read_bytes()
    if damage == "garbage":
        file.write_bytes(os.urandom(5000))
    elif damage == "truncated":
        file.write_bytes(content[: len(content) // 2])
    elif damage == "middle":
        file.write_bytes(content[:4096] + b"\xff" * (len(content) - 8192) + content[-4096:])
    else:
        with sqlite3.connect(file) as database:
            database.execute(
                {
                    "no id": "DELETE FROM memory WHERE field = 'id'",
                    "unknown state": "UPDATE memory SET value = '{\"node\": 3}' WHERE field = 'claims'",
                    "version": "PRAGMA user_version = 99",
                }[damage]
            )
        database.close()
    new = reopened(tmp_path)
    assert new == Memory(new.id)
    assert new.id != old.id
    assert [path.name[:22] for path in tmp_path.glob("*.broken-*") if path.suffix[-4:] != "-wal"] == [
        f"{FILE}.broken-2"
    ]
    assert reopened(tmp_path) == new


def test_a_file_that_goes_under_a_running_daemon_is_written_again(tmp_path: Path) -> None:
    with Ledger(tmp_path) as ledger:
        memory = replace(ledger.load(), claims={"gpu-e1": claim()})
        ledger.commit(memory)
        for file in tmp_path.glob(f"{FILE}*"):
            file.unlink()
        assert ledger.load() == memory
        ledger.commit(memory)
        assert ledger.load() == memory
    assert reopened(tmp_path) == memory


def test_a_second_daemon_is_refused_until_the_first_is_dead(tmp_path: Path) -> None:
    script = """
import sys, time
from gpucluster.autoscaler.daemon.ledger import *
held = Ledger(Path(sys.argv[1]))
print("up", flush=True)
time.sleep(60)
"""
    child = subprocess.Popen([sys.executable, "-c", script, str(tmp_path)], stdout=subprocess.PIPE)
    try:
        assert child.stdout is not None
        assert child.stdout.readline() == b"up\n"
        with pytest.raises(LockedError, match=f"pid {child.pid}"):
            Ledger(tmp_path)
    finally:
        child.kill()
        child.wait()
    reopened(tmp_path)


def test_a_process_that_is_killed_has_written_what_it_committed(tmp_path: Path) -> None:
    script = """
import sys
from dataclasses import replace
from gpucluster.autoscaler.daemon.ledger import *
from gpucluster.autoscaler.decide.types import ClaimState
from tests.examples import examples
with Ledger(Path(sys.argv[1])) as ledger:
    memory = ledger.load()
    for n in range(100000):
        memory = replace(memory, node_count=n, claims={"a": NodeClaim("a", "p", n, "t", ClaimState.INTENDED, 0.0, 0.0)})
        ledger.commit(memory)
        print(n, flush=True)
"""
    child = subprocess.Popen([sys.executable, "-c", script, str(tmp_path)], stdout=subprocess.PIPE)
    assert child.stdout is not None
    said = [int(child.stdout.readline()) for _ in range(30)]
    child.send_signal(signal.SIGKILL)
    said += [int(line) for line in child.stdout.read().split()]
    child.wait()
    memory = reopened(tmp_path)
    assert memory.node_count == memory.claims["a"].generation
    assert memory.node_count in (said[-1], said[-1] + 1)


def test_pause_is_set_by_another_process_and_stays_through_commits(tmp_path: Path) -> None:
    with Ledger(tmp_path) as ledger:
        loaded = ledger.load()
        with Ledger(tmp_path, exclusive=False) as command:
            command.pause("maintenance of the network", now=7.0)
            ledger.commit(replace(loaded, node_count=3))
            assert ledger.load().paused == "maintenance of the network"
            assert command.load() == ledger.load()
            command.pause("", now=9.0)
        assert ledger.load() == replace(loaded, node_count=3, resumed_at=9.0)
        ledger.commit(replace(ledger.load(), node_count=4))
        assert ledger.load().resumed_at == 9.0
        assert [event.what for event in ledger.history("autoscaler")] == ["pause", "resume"]


def test_a_command_begins_nothing_and_sets_nothing_aside(tmp_path: Path) -> None:
    with pytest.raises(LedgerError, match="can't be opened"):
        Ledger(tmp_path, exclusive=False)
    (tmp_path / FILE).write_bytes(b"garbage" * 1000)
    with pytest.raises(LedgerError, match="can't be read"):
        Ledger(tmp_path, exclusive=False)
    assert [path.name for path in tmp_path.iterdir()] == [FILE]


@pytest.mark.parametrize("full", [True, False], ids=["full", "read-only"])
def test_what_can_not_be_written_raises_and_is_not_remembered(tmp_path: Path, full: bool) -> None:
    with Ledger(tmp_path) as ledger:
        before = ledger.load()
        assert ledger._database is not None
        # SQLite reports a quota of pages as it reports a full disk.
        ledger._database.execute("PRAGMA max_page_count = 1" if full else "PRAGMA query_only = 1")
        after = replace(before, claims={f"gpu-e{n}": claim(f"gpu-e{n}", message="x" * 300) for n in range(500)})
        with pytest.raises(LedgerError, match="full" if full else "readonly"):
            ledger.commit(after)
        assert ledger.load() == before
        ledger._database.execute("PRAGMA max_page_count = 1000000" if full else "PRAGMA query_only = 0")
        ledger.commit(after)
    assert reopened(tmp_path) == after


@pytest.mark.skipif(os.geteuid() != 0, reason="mounts a small file system")
def test_a_disk_that_is_really_full(tmp_path: Path) -> None:
    mount = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=400k", "tmpfs", str(tmp_path)], check=False)
    if mount.returncode:
        pytest.skip("no right to mount")
    try:
        with Ledger(tmp_path) as ledger:
            before = ledger.load()
            filler = tmp_path / "filler"
            with pytest.raises(OSError, match="space"):
                filler.write_bytes(b"x" * 1_000_000)
            after = replace(before, claims={f"gpu-e{n}": claim(f"gpu-e{n}") for n in range(300)})
            with pytest.raises(LedgerError, match=r"full|I/O"):
                ledger.commit(after)
            assert ledger.load() == before
            filler.unlink()
            ledger.commit(after)
            assert ledger.load() == after
    finally:
        subprocess.run(["umount", str(tmp_path)], check=True)


def test_the_history_of_a_subject_reports_what_was_done_and_why(tmp_path: Path) -> None:
    launched = claim(state=ClaimState.LAUNCHED, instance_id="ocid1.x", request_id="r1")
    failed = claim(state=ClaimState.FAILED, fault=Fault.CAPACITY, message="500 Out of host capacity")
    with Ledger(tmp_path) as ledger:
        memory = replace(ledger.load(), claims={"gpu-e1": claim()})
        actions = (
            Launch("gpu-e1", "gpu", 1, "token", "job 7 needs it"),
            PowerDown(("gpu-e2", "gpu-e3"), "nobody wants them"),
            Terminate("ocid1.y", "gpu-e2", "gpu", "its node is given up"),
            Delay("7", 100.0, "no host is free"),
        )
        ledger.commit(memory, ScalingPlan(actions, memory, (Note("7", "job 7 waits"),)), 10.0)
        memory = replace(memory, claims={"gpu-e1": launched})
        ledger.commit(memory, ScalingPlan((), memory, (Note("7", "job 7 waits"),)), 11.0)
        memory = replace(memory, claims={"gpu-e1": failed})
        ledger.commit(memory, ScalingPlan((), memory), 12.0)
        ledger.commit(replace(memory, claims={}), ScalingPlan((), memory, (Note("7", "job 7 waits"),)), 13.0)
        ledger.audit([LedgerEvent(14.0, "gpu-e3", "console saved")])
    with Ledger(tmp_path, exclusive=False) as reader:
        assert reader.history("gpu-e1") == (
            LedgerEvent(10.0, "gpu-e1", "intended, generation 1"),
            LedgerEvent(10.0, "gpu-e1", "launch", "job 7 needs it"),
            LedgerEvent(11.0, "gpu-e1", "launched, generation 1", "ocid1.x; r1"),
            LedgerEvent(12.0, "gpu-e1", "failed, generation 1", "capacity: 500 Out of host capacity"),
            LedgerEvent(13.0, "gpu-e1", "forgotten"),
        )
        # The same note in two passes in a row is one event; the same note later is another event.
        assert [(event.at, event.what) for event in reader.history("7")] == [
            (10.0, "delay"),
            (10.0, "note"),
            (13.0, "note"),
        ]
        assert [event.what for event in reader.history("gpu-e3")] == ["power down", "console saved"]
        assert [event.why for event in reader.history("ocid1.y")] == ["its node is given up"]
        assert [event.at for event in reader.history("7", most=1)] == [13.0]
        assert reader.history("nothing") == ()


def test_old_events_go(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "EVENTS_KEPT", 50)
    with Ledger(tmp_path) as ledger:
        for number in range(20):
            ledger.audit(LedgerEvent(float(number), "gpu-e1", "look") for _ in range(10))
        assert [event.at for event in ledger.history("gpu-e1", 1000)] == [
            float(n) for n in range(15, 20) for _ in range(10)
        ]
