"""Kinds of fields that sections share: names."""
# A row of the table is a line, so that rows can be compared.
# ruff: noqa: E501

from __future__ import annotations

import pytest

from tests.spec.faults import reported

# id: (what stands in LOCAL, what stands there instead with § at the error, path, words)
ROWS: dict[str, tuple[str, str, str, str]] = {
    "capital": ("name: demo", "name: §Demo", "name", "must be at most 15 lower-case"),
    "long name": ("name: demo", "name: §" + "a" * 16, "name", "must be at most 15"),
    "name ends with dash": ("name: demo", "name: §demo-", "name", "not ending with -"),
    "name with accent": ("name: demo", "name: §démo", "name", 'got "démo"'),
    "pool with underscore": ("  compute:", "  §com_pute:", "pools.com_pute", "name of a pool"),
    "long pool": ("  compute:", "  §" + "a" * 21 + ":", "pools." + "a" * 21, "at most 20"),
    "pool begins with a digit": ("  compute:", "  §2gpus:", "pools.2gpus", "the name of a pool begins with a letter"),
    "pool named as a node": ("  cpu:", "  §compute-1:", "pools.compute-1", "compute-1 is also the name of a node of the pool compute. Choose"),
    "pool named as an elastic node": ("  cpu:", "  §compute-e2:", "pools.compute-e2", "name of a node of the pool compute"),
    "pool named all": ("  compute:", "  §all:", "pools.all", "the name all is reserved"),
    "negative login nodes": ("storage:", "login: {count: §-1}\nstorage:", "login.count", "at least 0; got -1"),
    "shape of login nodes": ("storage:", "login: {count: 1, shape: §VM.Nothing}\nstorage:", "login.shape", "unknown shape"),
    "pool named as login nodes": ("storage:\n  home:\n    mount_path: /mnt/home\n    export_path: /mnt/home\npools:\n  compute:", "login: {count: 1}\npools:\n  §login:", "pools.login", "is a name of the login nodes"),
    "pool whose nodes are named as login nodes": ("storage:\n  home:\n    mount_path: /mnt/home\n    export_path: /mnt/home\npools:\n  compute:", "login: {count: 1}\npools:\n  §demo-login:", "pools.demo-login", "is a name of the login nodes"),
    "pool named controller": ("  compute:", "  §controller:", "pools.controller", "is reserved"),
    "pool named default": ("  compute:", "  §default:", "pools.default", "is reserved"),
    "provider": ("provider: local", "provider: §locl", "cloud.provider", 'must be local or oci; got "locl". Did you mean local'),
    "empty text": ("name: demo", 'name: §""', "name", "must be at most 15"),
}  # fmt: skip


@pytest.mark.parametrize("row", ROWS.values(), ids=ROWS.keys())
def test_one_fault_is_told_once_and_at_its_place(row: tuple[str, str, str, str]) -> None:
    reported(row)
