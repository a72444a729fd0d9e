"""A round of the timer: what hosts are asked, and what becomes of their answers. The hosts are a double, which proves
nothing of ssh; tests/e2e/test_drift.py has real ones."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from gpucluster.controller.host_commands import Answer, ReachableHosts
from gpucluster.controller.logs import collect
from gpucluster.controller.logs.__main__ import main
from gpucluster.controller.logs.store import LogStore

NOW = 1_795_998_584.0


@dataclass
class Hosts:
    names: list[str]
    answers: Mapping[str, Answer]
    asked: list[dict[str, Any]] = field(default_factory=list)
    gone: dict[str, str] = field(default_factory=dict)

    def ask(
        self, names: Sequence[str], words: Sequence[str], text_by_host: Mapping[str, str], _seconds: float
    ) -> dict[str, Answer]:
        assert list(words) == ["journal"]
        self.asked.append({name: json.loads(text_by_host[name]) for name in names})
        return {name: self.answers[name] for name in names}


def answer(*lines: str, cursor: str = "c1", cut: bool = False) -> Answer:
    return Answer(json.dumps({"cursor": cursor, "lines": list(lines), "cut": cut}), "")


@pytest.fixture
def store(tmp_path: Path) -> LogStore:
    return LogStore(tmp_path / "logs")


def given(monkeypatch: pytest.MonkeyPatch, hosts: Hosts) -> None:
    monkeypatch.setattr(collect, "Config", SimpleNamespace(load=lambda _file: SimpleNamespace(hosts=None)))
    monkeypatch.setattr(ReachableHosts, "as_far_as_known", lambda _config: hosts)


def test_each_host_is_asked_for_what_follows_its_last_line(store: LogStore, monkeypatch: pytest.MonkeyPatch) -> None:
    hosts = Hosts(["gpu-1", "gpu-2"], {"gpu-1": answer("a"), "gpu-2": Answer("", "timed out")})
    given(monkeypatch, hosts)
    found = collect.collect(store, NOW)
    assert (found.kept, found.silent) == ({"gpu-1": 1}, {"gpu-2": "timed out"})
    first = {"cursor": "", "since": NOW - collect.FIRST_SECONDS}
    assert hosts.asked == [{"gpu-1": first, "gpu-2": first}]
    collect.collect(store, NOW + 300)
    assert hosts.asked[1] == {
        "gpu-1": {"cursor": "c1", "since": NOW},
        "gpu-2": {"cursor": "", "since": NOW + 300 - collect.FIRST_SECONDS},
    }
    assert store.hosts() == ["gpu-1"]


def test_many_hosts_are_asked_in_parts(store: LogStore, monkeypatch: pytest.MonkeyPatch) -> None:
    names = [f"gpu-{number}" for number in range(1, 71)]
    hosts = Hosts(names, {name: answer(name) for name in names})
    given(monkeypatch, hosts)
    collect.collect(store, NOW)
    assert [len(part) for part in hosts.asked] == [32, 32, 6]
    assert len(store.hosts()) == 70


def test_a_host_can_not_write_lines_of_its_own_form(store: LogStore, monkeypatch: pytest.MonkeyPatch) -> None:
    given(monkeypatch, Hosts(["gpu-1"], {"gpu-1": answer("a\nb", "  c\r\n\x1ed", "ü\ud800")}))
    collect.collect(store, NOW)
    assert list(store.lines("gpu-1")) == ["a b", "  c  d", "ü?"]


@pytest.mark.parametrize(
    "text",
    [
        "", "[]", "{}", '{"lines": 1}', '{"lines": [], "cut": false}', "[" * 100_000,
        '{"lines": null, "cursor": "", "cut": false}',
    ],
)  # fmt: skip
def test_an_answer_that_is_none_costs_no_other_host_its_lines(
    store: LogStore, monkeypatch: pytest.MonkeyPatch, text: str
) -> None:
    given(monkeypatch, Hosts(["gpu-1", "gpu-2"], {"gpu-1": Answer(text, ""), "gpu-2": answer("b")}))
    found = collect.collect(store, NOW)
    assert (found.kept, list(found.silent)) == ({"gpu-2": 1}, ["gpu-1"])
    assert "can't be read" in found.silent["gpu-1"]


def test_lines_that_were_left_out_are_named(store: LogStore, monkeypatch: pytest.MonkeyPatch) -> None:
    given(monkeypatch, Hosts(["gpu-1"], {"gpu-1": answer("2026-11-30T00:00:00+00:00 gpu-1 x: a", cut=True)}))
    collect.collect(store, NOW)
    first, second = store.lines("gpu-1")
    assert "only the last 50000 lines are kept" in first
    assert second.endswith("x: a")


def test_a_full_disk_is_named_and_the_lines_come_with_a_later_round(
    store: LogStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    hosts = Hosts(["gpu-1"], {"gpu-1": answer("a")})
    given(monkeypatch, hosts)

    def full(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(LogStore, "add", full)
        assert "No space left" in collect.collect(store, NOW).silent["gpu-1"]
    collect.collect(store, NOW)
    assert list(store.lines("gpu-1")) == ["a"]


def test_a_round_writes_metrics_and_names_silent_hosts(
    store: LogStore, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    given(monkeypatch, Hosts(["gpu-1", "gpu-2"], {"gpu-1": answer("a"), "gpu-2": Answer("", "no route to host")}))
    store.add("gone", ["old"], "c", 1.0)
    words = ["collect", "--keep-days", "30", "--max-mb", "1", "--metrics", str(tmp_path)]
    assert main(words, store.folder) == 0
    assert capsys.readouterr().out == "gpu-2: no lines: no route to host\n"
    text = (tmp_path / collect.METRICS_FILE).read_text()
    samples = dict(line.split() for line in text.splitlines() if not line.startswith("#"))
    assert set(samples) == set(collect.METRICS)
    assert samples["gpucluster_logs_silent_hosts"] == "1"
    assert int(samples["gpucluster_logs_bytes"]) == store.files("gpu-1")[0].size
    assert store.hosts() == ["gpu-1"]


def test_without_monitoring_a_round_writes_no_metrics(
    store: LogStore, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    given(monkeypatch, Hosts(["gpu-1"], {"gpu-1": answer("a")}))
    words = ["collect", "--keep-days", "30", "--max-mb", "1", "--metrics", str(tmp_path / "missing")]
    assert main(words, store.folder) == 0
    assert list(store.lines("gpu-1")) == ["a"]
    assert not (tmp_path / "missing").exists()
