"""Messages for values of a wrong type and for keys: each names the place and what to write."""
# A row of the table is a line, so that rows can be compared.
# ruff: noqa: E501

from __future__ import annotations

import pytest

from tests.spec.faults import findings, reported
from tests.spec.spec_texts import LOCAL

# id: (what stands in LOCAL, what stands there instead with § at the error, path, words)
ROWS: dict[str, tuple[str, str, str, str]] = {
    "quoted number": ("count: 2", 'count: §"2"', "pools.compute.count", "whole number; got \"2\". Write it without quotes: 2"),
    "word for number": ("count: 2", "count: §two", "pools.compute.count", "whole number"),
    "octal": ("count: 2", "count: §010", "pools.compute.count", "Write it without zeros before it: 10"),
    "sexagesimal": ("gid: 9999", "gid: §1:30", "users.gid", "whole number"),
    "underscores": ("gid: 9999", "gid: §9_876", "users.gid", "whole number"),
    "fraction": ("count: 2", "count: §2.5", "pools.compute.count", "whole number; got 2.5"),
    "huge number": ("count: 2", "count: §99999999999999999999999", "pools.compute.count", "a whole number of fewer digits"),
    "managed by nobody": ("count: 2", "count: 2\n    managed: §true", "pools.compute.managed", "only OKE has node pools that it manages"),
    "large number": ("count: 2", "count: §10001", "pools.compute.count", "at most 10000; got 10001"),
    "negative": ("count: 2", "count: §-1", "pools.compute.count", "at least 0; got -1"),
    "true for number": ("count: 2", "count: §true", "pools.compute.count", "whole number; got true"),
    "yes": ("accounting: true", "accounting: §yes", "slurm.accounting", "true or false; got \"yes\". Write true"),
    "quoted true": ("accounting: true", 'accounting: §"true"', "slurm.accounting", "Write true, without quotes"),
    "off": ("accounting: true", "accounting: §off", "slurm.accounting", "Write false"),
    "one for true": ("accounting: true", "accounting: §1", "slurm.accounting", "true or false; got 1"),
    "number for text": ("group: people", "group: §12", "users.group", 'must be text; got 12. Write it in quotes: "12"'),
    "version of an image": (
        "  memory_gb: 32",
        "  memory_gb: 32\n  image: {operating_system: Debian, version: §24.10}",
        "controller.image.version",
        'got 24.10. Write it in quotes: "24.10"',
    ),
    "text for list": ("[127.0.0.0/8]", "§127.0.0.0/8", "network.ssh_allowed_cidrs", "must be a list; got \"127.0.0.0/8\". Write ["),
    "list for mapping": ("  extra_config: {SchedulerParameters: bf_interval=30}", "  extra_config: §[a]", "slurm.extra_config", "keys with values; got a list"),
    "text for mapping": ("  timezone: UTC", "  §UTC", "software", "must be keys with values; got \"UTC\". Keys: timezone"),
    "mapping for text": ("name: demo", "name: §{a: b}", "name", "must be text; got keys with values"),
    "nothing": ("name: demo", "name:§", "name", "has no value"),
    "null for number": ("count: 2", "count: §null", "pools.compute.count", "has no value"),
    "unknown key": ("count: 2", "count: 2\n    §max_cout: 3", "pools.compute.max_cout", "unknown key. Did you mean max_count"),
    "unknown section": ("software:", "§sofware:", "sofware", "unknown key. Did you mean software?"),
    "key of another section": ("name: demo", "name: demo\n§vcn_cidr: 10.0.0.0/16", "vcn_cidr", "It belongs under network"),
    "key of the top level": ("    count: 2", "    count: 2\n    §software: {}", "pools.compute.software", "belongs under the top level"),
    "unknown without likeness": ("  timezone: UTC", "  timezone: UTC\n  §zzz: 1", "software.zzz", "unknown key. Known here: timezone"),
    "missing key": ("  vcn_cidr: 10.77.0.0/16\n", "", "network.vcn_cidr", "is missing. Write, for example, `vcn_cidr: 10.0.0.0/16`"),
    "missing shape": ("    shape: BM.GPU4.8\n", "", "pools.compute.shape", "is missing"),
    "missing section": ("cloud:\n  provider: local\n", "", "cloud", "Write, for example, `cloud: {provider: local}`"),
    "key twice": ("    count: 2", "    count: 2\n    §count: 3", "pools.compute.count", "occurs twice, first in line 21"),
    "section twice": ("software:\n", "§users: {}\nsoftware:\n", "users", "occurs twice"),
    "number as key": ("  compute:", "  §17:", "pools.17", 'a key must be text. Write it in quotes: "17"'),
    "list as key": ("  timezone: UTC", "  timezone: UTC\n  ? §[a]\n  : b", "software", "a key must be text"),
    "merge key": ("    count: 2", "    count: 2\n    §<<: {a: b}", "pools.compute.<<", "merge keys are not supported"),
    "unknown version": ("version: 1", "version: §2", "version", "this gpucluster reads version 1; got 2"),
    "quoted version": ("version: 1", 'version: §"1"', "version", "Write `version: 1`"),
    "true as version": ("version: 1", "version: §true", "version", "Write `version: 1`"),
    "no version": ("version: 1\n", "", "version", "is missing. Write, for example, `version: 1`"),
}  # fmt: skip


@pytest.mark.parametrize("row", ROWS.values(), ids=ROWS.keys())
def test_one_fault_is_told_once_and_at_its_place(row: tuple[str, str, str, str]) -> None:
    reported(row)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("apiVersion: v1\nkind: Pod\nmetadata: {name: a}\n", "a file of Kubernetes"),
        ("root: x\ndaemon: x\nbin: x\nsys: x\nname: y\n", 'begins with the keys "root", "daemon", "bin"'),
    ],
)
def test_a_file_of_something_else_gets_one_message(text: str, words: str) -> None:
    ((line, column, _, message),) = findings(text)
    assert (line, column) == (1, 1)
    assert words in message
    assert "gpucluster init" in message


def test_a_few_unknown_keys_are_named_one_by_one() -> None:
    assert len(findings(LOCAL + "one: 1\ntwo: 2\nthree: 3\nfour: 4\n")) == 4
