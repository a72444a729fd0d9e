"""The SQLite file of a local cloud: transactions, searches, addresses, retry tokens, and what is forgotten."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from gpucluster.localcloud.state.store import Resource, ResourceStore, Retry


@pytest.fixture
def store(tmp_path: Path) -> Iterator[ResourceStore]:
    opened = ResourceStore(tmp_path / "home" / "cloud.db")
    yield opened
    opened.close()


def add(store: ResourceStore, ocid: str, kind: str = "vcn", **members: object) -> Resource:
    return store.add(Resource(ocid, kind, dict(members)))


def ids(resources: list[Resource]) -> list[str]:
    return [each.id for each in resources]


def test_only_its_owner_reads_the_file(store: ResourceStore, tmp_path: Path) -> None:
    assert (tmp_path / "home").stat().st_mode & 0o777 == 0o700
    assert (tmp_path / "home" / "cloud.db").stat().st_mode & 0o777 == 0o600


def test_a_row_outlives_the_connection_and_each_write_changes_its_etag(store: ResourceStore, tmp_path: Path) -> None:
    row = add(store, "a", lifecycleState="PROVISIONING")
    etags = {row.etag}
    row.body["lifecycleState"], row.hidden["ip"] = "AVAILABLE", "10.0.0.2"
    etags.add(store.save(row).etag)
    other = ResourceStore(tmp_path / "home" / "cloud.db")
    again = other.get("vcn", "a")
    other.close()
    assert again is not None
    assert (again.state, again.hidden, again.etag) == ("AVAILABLE", {"ip": "10.0.0.2"}, row.etag)
    assert len(etags) == 2
    assert store.get("subnet", "a") is None


def test_a_failed_transaction_leaves_nothing_and_an_inner_one_undoes_only_itself(store: ResourceStore) -> None:
    def fails(ocid: str) -> None:
        with store.transaction():
            add(store, ocid)
            raise KeyError

    with pytest.raises(KeyError):
        fails("lost")
    with store.transaction():
        add(store, "outer")
        with pytest.raises(KeyError):
            fails("inner")
    assert ids(store.find("vcn")) == ["outer"]


def test_rows_are_searched_by_members_and_by_whether_they_are_gone(store: ResourceStore) -> None:
    add(store, "a", compartmentId="c", cidr="10.0.0.0/16")
    add(store, "b", compartmentId="d")
    gone = add(store, "z", compartmentId="c")
    gone.gone_at = time.time()
    store.save(gone)
    assert ids(store.find("vcn")) == ["a", "b"]
    assert ids(store.find("vcn", compartmentId="c")) == ["a"]
    assert ids(store.find("vcn", gone=True)) == ["z"]
    assert ids(store.find("vcn", gone=None, compartmentId="c")) == ["a", "z"]
    assert store.count("vcn", {"compartmentId": "c"}, gone=None) == 2
    # Values are parameters of SQL, whatever they contain.
    assert store.find("vcn", compartmentId="c' OR '1'='1") == []


def test_the_newest_come_in_pages(store: ResourceStore) -> None:
    for number in range(5):
        store.add(Resource(f"w{number}", "work", {"of": "i"}, {"pool": number % 2}))
    first = store.newest("work", {"of": "i"}, {}, before=None, limit=2)
    assert ids(first) == ["w4", "w3"]
    assert ids(store.newest("work", {}, {}, before=first[-1].seq, limit=9)) == ["w2", "w1", "w0"]
    assert ids(store.newest("work", {}, {"pool": 1}, before=None, limit=9)) == ["w3", "w1"]


def test_a_host_name_is_found_in_its_subnet_in_any_case(store: ResourceStore) -> None:
    add(store, "v", "vnic", subnetId="s", hostnameLabel="Node-1")
    add(store, "w", "vnic", subnetId="t", hostnameLabel="node-1")
    add(store, "x", "vnic", subnetId="s")
    assert ids(store.labelled("s", "NODE-1")) == ["v"]
    assert store.labelled("s", "node-2") == []


def test_an_address_is_taken_once_in_a_space_until_its_owner_releases_it(store: ResourceStore) -> None:
    assert store.take_address("s", "10.0.0.2", "one")
    assert not store.take_address("s", "10.0.0.2", "two")
    assert store.take_address("t", "10.0.0.2", "two")
    assert store.taken_addresses("s") == {"10.0.0.2"}
    store.release_addresses("one")
    assert (store.taken_addresses("s"), store.taken_addresses("t")) == (set(), {"10.0.0.2"})


def test_what_is_gone_is_forgotten_but_images_that_instances_may_name(store: ResourceStore) -> None:
    for ocid, kind, gone_at in (("old", "vcn", 10.0), ("new", "vcn", 30.0), ("image", "image", 10.0)):
        store.add(Resource(ocid, kind, {}, gone_at=gone_at))
    add(store, "here")
    assert store.forget(gone_before=20.0) == 1
    assert ids(store.find("vcn", gone=None)) == ["new", "here"]
    assert ids(store.find("image", gone=None)) == ["image"]


def test_a_retry_token_is_known_for_a_day_and_goes_with_its_resource(
    store: ResourceStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    for token in ("dropped", "old"):
        store.remember_retry(token, Retry("CreateVcn", "digest", token, "work"))
    assert store.retry("old") == Retry("CreateVcn", "digest", "old", "work")
    store.drop("dropped")
    assert store.retry("dropped") is None
    store.forget(gone_before=0)
    assert store.retry("old") is not None
    tomorrow = time.time() + 24 * 3600 + 1
    monkeypatch.setattr(time, "time", lambda: tomorrow)
    store.forget(gone_before=0)
    assert store.retry("old") is None


def test_settings(store: ResourceStore) -> None:
    assert store.setting("tenancy") is None
    store.set_setting("tenancy", "a")
    store.set_setting("tenancy", "b")
    assert store.setting("tenancy") == "b"
