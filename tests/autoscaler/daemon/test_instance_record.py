"""The record of instances: when each came and went, over restarts, gaps and damage."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpucluster.autoscaler.daemon import instance_record
from gpucluster.autoscaler.daemon.instance_record import FILE, InstanceRecord
from gpucluster.autoscaler.decide.types import CloudInstance
from gpucluster.autoscaler.policy import PoolPolicy
from gpucluster.controller.accounts.usage import KEPT_S, instances

POOL = PoolPolicy("gpu", "gpu", "gpu-e", 9, 4, "BM.GPU4.8", "AD-1", "ocid", machine={"gpus": 8, "shape": "BM.GPU4.8"})
DAY = 86400.0


def instance(number: int, *, state: str = "RUNNING", created: float = 100.0, pool: str = "gpu") -> CloudInstance:
    return CloudInstance(f"ocid.{number}", f"gpu-e{number}", pool, 1, state, created)


def observe(record: InstanceRecord, now: float, *listed: CloudInstance) -> None:
    record.observe(listed, {"gpu": POOL}, now)


def rows(folder: Path) -> list[tuple[str, float, float | None, float]]:
    return [(row["id"], row["began"], row["ended"], row["unsure"]) for row in instances(folder / FILE)]


def test_an_instance_counts_from_its_launch_until_it_is_not_live(tmp_path: Path) -> None:
    record = InstanceRecord(tmp_path)
    observe(record, 110.0, instance(1), instance(2, state="PROVISIONING", created=105.0))
    assert rows(tmp_path) == [("ocid.1", 100.0, None, 0.0), ("ocid.2", 105.0, None, 0.0)]
    observe(record, 200.0, instance(1), instance(2, state="TERMINATING"))
    observe(record, 210.0, instance(1))
    assert rows(tmp_path) == [("ocid.1", 100.0, None, 0.0), ("ocid.2", 105.0, 200.0, 0.0)]
    (first, _) = instances(tmp_path / FILE)
    assert (first["name"], first["pool"], first["machine"]) == ("gpu-e1", "gpu", {"gpus": 8, "shape": "BM.GPU4.8"})


def test_a_listing_that_lacked_an_instance_for_a_moment_is_no_end(tmp_path: Path) -> None:
    record = InstanceRecord(tmp_path)
    for now, listed in ((110.0, [instance(1)]), (120.0, []), (130.0, [instance(1)])):
        observe(record, now, *listed)
    assert rows(tmp_path) == [("ocid.1", 100.0, None, 0.0)]


def test_what_ended_while_no_daemon_ran_is_unsure(tmp_path: Path) -> None:
    observe(InstanceRecord(tmp_path), 110.0, instance(1), instance(2))
    again = InstanceRecord(tmp_path)
    observe(again, 400.0, instance(1), instance(2))
    observe(again, 450.0, instance(1))
    observe(InstanceRecord(tmp_path), 5000.0)
    assert rows(tmp_path) == [("ocid.1", 100.0, 5000.0, 4550.0), ("ocid.2", 100.0, 450.0, 0.0)]


def test_nothing_is_written_while_nothing_changes_but_that_it_was_seen(tmp_path: Path) -> None:
    record = InstanceRecord(tmp_path)
    observe(record, 110.0, instance(1))
    before = (tmp_path / FILE).stat().st_mtime_ns
    observe(record, 120.0, instance(1))
    assert (tmp_path / FILE).stat().st_mtime_ns == before
    observe(record, 3000.0, instance(1))
    observe(record, 3100.0)
    assert rows(tmp_path) == [("ocid.1", 100.0, 3100.0, 0.0)]


def test_it_stays_small(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(instance_record, "MOST", 3)
    record = InstanceRecord(tmp_path)
    observe(record, 110.0, *(instance(number, created=float(number)) for number in range(1, 7)))
    assert [row[0] for row in rows(tmp_path)] == ["ocid.4", "ocid.5", "ocid.6"]
    observe(record, 120.0)
    observe(record, 121.0 + KEPT_S, instance(9))
    assert [row[0] for row in rows(tmp_path)] == ["ocid.9"]


def test_a_file_that_is_damaged_or_gone_is_begun_again(tmp_path: Path) -> None:
    record = InstanceRecord(tmp_path)
    observe(record, 110.0, instance(1))
    (tmp_path / FILE).write_bytes(b"not a database" * 100)
    observe(record, 120.0, instance(1), instance(2))
    assert [row[0] for row in rows(tmp_path)] == ["ocid.1", "ocid.2"]
    assert (tmp_path / f"{FILE}.broken").exists()
    (tmp_path / FILE).unlink()
    observe(record, 130.0, instance(1))
    assert [row[0] for row in rows(tmp_path)] == ["ocid.1"]


def test_an_instance_of_a_pool_that_is_gone(tmp_path: Path) -> None:
    observe(InstanceRecord(tmp_path), 110.0, instance(1, pool="old"))
    assert instances(tmp_path / FILE)[0]["machine"] == {}
