"""The parts of a cluster: what is shared between them, and that making them sends no request."""

from __future__ import annotations

import inspect
import threading
from dataclasses import fields, is_dataclass
from pathlib import Path

import pytest

from gpucluster.cluster.composition import (
    ClusterConnections,
    ClusterIdentity,
    Options,
    Parts,
    Phases,
    compose,
    with_spec,
)
from gpucluster.events import Event, EventKind
from gpucluster.spec import load
from tests.spec.spec_texts import LOCAL
from tests.waiting import PATIENCE_S, wait_for


@pytest.fixture
def options(tmp_path: Path) -> Options:
    (tmp_path / "cluster.yml").write_text(LOCAL)
    return Options(
        spec=load(tmp_path / "cluster.yml"), on_event=lambda _: None, provider="bundled", cluster_id="0123456789abcdef"
    )


def test_composing_sends_no_request_and_writes_nothing(options: Options) -> None:
    parts = compose(options)
    assert parts.spec is options.spec
    assert not parts.paths.root.exists()


def test_another_spec_keeps_the_other_options(options: Options) -> None:
    parts = compose(options)
    other = with_spec(parts, options.spec.model_copy(update={"name": "other"}))
    assert (other.spec.name, other.options.cluster_id, parts.spec.name) == ("other", options.cluster_id, "demo")


def test_events_come_by_one_thread_at_a_time(options: Options) -> None:
    inside, entered, go_on = [], threading.Event(), threading.Event()

    def sink(event: Event) -> None:
        inside.append(event.name)
        entered.set()
        assert go_on.wait(PATIENCE_S)

    parts = compose(Options(spec=options.spec, on_event=sink, provider="bundled", cluster_id=""))
    threads = [
        threading.Thread(target=parts.on_event, args=(Event(EventKind.LOG, name, "info"),)) for name in ("one", "two")
    ]
    threads[0].start()
    assert entered.wait(PATIENCE_S)
    threads[1].start()
    assert inside == ["one"]
    go_on.set()
    for thread in threads:
        thread.join()
    wait_for("both events", lambda: inside == ["one", "two"])


@pytest.mark.parametrize("group", [Options, ClusterIdentity, ClusterConnections, Phases, Parts])
def test_groups_are_frozen_and_made_by_name(group: type) -> None:
    assert is_dataclass(group)
    assert group.__dataclass_params__.frozen  # type: ignore[attr-defined]
    assert all(field.kw_only for field in fields(group))


def test_phases_are_made_by_name(options: Options) -> None:
    phases = compose(options).phases
    for field in fields(phases):
        parameters = inspect.signature(type(getattr(phases, field.name))).parameters.values()
        by_position = [each.name for each in parameters if each.kind is not inspect.Parameter.KEYWORD_ONLY]
        assert len(by_position) <= 3, field.name
