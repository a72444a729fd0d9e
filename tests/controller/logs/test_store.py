"""Files of kept lines: what a round adds, what an interrupted one leaves, and what goes when it is old."""

from __future__ import annotations

import gzip
import json
from datetime import datetime
from pathlib import Path

import pytest

from gpucluster.controller.logs.store import LogStore, Position

DAY, NEXT = "2026-11-29", "2026-11-30"


def at(day: str, seconds: float = 0.0) -> float:
    """A time, seconds after the beginning of a day."""
    return datetime.fromisoformat(f"{day}T00:00:00+00:00").timestamp() + seconds


@pytest.fixture
def store(tmp_path: Path) -> LogStore:
    return LogStore(tmp_path / "logs")


def test_rounds_follow_each_other_over_days(store: LogStore) -> None:
    assert (store.hosts(), store.position("gpu-1"), list(store.lines("gpu-1"))) == ([], Position(), [])
    store.add("gpu-1", ["a", "b"], "c1", at(DAY, 10.0))
    store.add("gpu-1", ["c"], "c2", at(DAY, 20.0))
    store.add("gpu-1", [], "c2", at(NEXT, 30.0))
    assert store.position("gpu-1") == Position(
        "c2", at(NEXT, 30.0), DAY, (store.folder / "gpu-1" / f"{DAY}.gz").stat().st_size
    )
    store.add("gpu-1", ["d"], "c3", at(NEXT, 40.0))
    store.add("head", ["z"], "", at(NEXT, 40.0))
    assert list(store.lines("gpu-1")) == ["a", "b", "c", "d"]
    assert list(store.lines("gpu-1", since_day=NEXT)) == ["d"]
    assert store.hosts() == ["gpu-1", "head"]
    # zcat of an administrator reads it as well.
    assert gzip.decompress((store.folder / "gpu-1" / f"{DAY}.gz").read_bytes()) == b"a\nb\nc\n"


def test_root_alone_reads_them(store: LogStore) -> None:
    store.add("gpu-1", ["a"], "c1", at(DAY, 10.0))
    home = store.folder / "gpu-1"
    modes = {each.name: each.stat().st_mode & 0o777 for each in (home, *home.iterdir())}
    assert modes == {"gpu-1": 0o700, f"{DAY}.gz": 0o600, "position.json": 0o600}


@pytest.mark.parametrize(
    "left",
    [gzip.compress(b"b\n", mtime=0), gzip.compress(b"b\nc\n", mtime=0)[:9], b"\0" * 40],
    ids=["whole", "cut", "zeros"],
)
def test_what_an_interrupted_round_has_added_is_there_once(store: LogStore, left: bytes) -> None:
    """It ended after it had written lines, as a whole or in part, and before its record."""
    store.add("gpu-1", ["a"], "c1", at(DAY, 10.0))
    with (store.folder / "gpu-1" / f"{DAY}.gz").open("ab") as stream:
        stream.write(left)
    assert next(store.lines("gpu-1")) == "a"
    store.add("gpu-1", ["b", "c"], "c2", at(DAY, 20.0))
    assert list(store.lines("gpu-1")) == ["a", "b", "c"]


def test_an_interrupted_first_round_of_a_day_is_there_once(store: LogStore) -> None:
    store.add("gpu-1", ["a"], "c1", at(DAY, 10.0))
    (store.folder / "gpu-1" / f"{NEXT}.gz").write_bytes(gzip.compress(b"b\n"))
    store.add("gpu-1", ["b"], "c2", at(NEXT, 20.0))
    assert list(store.lines("gpu-1")) == ["a", "b"]


@pytest.mark.parametrize("text", ["", "{", "[]", '{"cursor": "x"}', '{"cursor": "x", "collected": [], "day": 1}'])
def test_after_a_record_that_can_not_be_read_lines_are_kept_as_at_first(store: LogStore, text: str) -> None:
    store.add("gpu-1", ["a"], "c1", at(DAY, 10.0))
    (store.folder / "gpu-1" / "position.json").write_text(text)
    assert store.position("gpu-1") == Position()
    store.add("gpu-1", ["b"], "c2", at(NEXT, 20.0))
    assert list(store.lines("gpu-1")) == ["a", "b"]


def test_a_file_that_is_a_link_is_not_followed(store: LogStore, tmp_path: Path) -> None:
    (store.folder / "gpu-1").mkdir(parents=True)
    victim = tmp_path / "victim"
    victim.write_text("precious")
    (store.folder / "gpu-1" / f"{DAY}.gz").symlink_to(victim)
    with pytest.raises(OSError, match="symbolic"):
        store.add("gpu-1", ["a"], "c1", at(DAY, 10.0))
    assert victim.read_text() == "precious"


def test_old_days_go_and_then_the_oldest_until_the_rest_is_small(store: LogStore) -> None:
    for host in ("a", "b"):
        for number in (27, 28, 29):
            store.add(host, [f"{host}{number}"], "c", at(f"2026-11-{number}", number))
    size = next(iter(store.files("a"))).size
    assert store.remove_old("2026-11-28", 10**9) == 4 * size
    assert list(store.lines("a")) == ["a28", "a29"]
    # Those of a day go host by host; what is newest of a host stays.
    assert store.remove_old("2026-11-28", 3 * size) == 3 * size
    assert [list(store.lines(host)) for host in ("a", "b")] == [["a29"], ["b28", "b29"]]
    assert store.remove_old("2026-11-28", 0) == 2 * size
    assert [list(store.lines(host)) for host in ("a", "b")] == [["a29"], ["b29"]]


def test_nothing_stays_of_a_host_that_is_long_gone(store: LogStore) -> None:
    store.add("gone", ["a"], "c", at("2026-10-01", 1.0))
    store.add("quiet", [], "c", at(NEXT, 1.0))
    store.add("here", ["b"], "c", at(NEXT, 1.0))
    (store.folder / "lost+found").mkdir()
    store.remove_old(DAY, 10**9)
    assert store.hosts() == ["here"]
    assert (store.folder / "lost+found").is_dir()
    assert not (store.folder / "gone").exists()


def test_the_record_is_json(store: LogStore) -> None:
    store.add("gpu-1", ["a"], 's=1;"\\', at(DAY, 10.0))
    assert json.loads((store.folder / "gpu-1" / "position.json").read_text())["cursor"] == 's=1;"\\'
