"""The section `software`: versions and checksums of releases."""
# A row of the table is a line, so that rows can be compared.
# ruff: noqa: E501

from __future__ import annotations

import pytest

from tests.spec.faults import reported

# id: (what stands in LOCAL, what stands there instead with § at the error, path, words)
ROWS: dict[str, tuple[str, str, str, str]] = {
    "a module that hosts need": ("timezone: UTC", "timezone: UTC\n  denied_modules: [§mlx5_core]", "software.denied_modules[0]", "hosts need mlx5_core"),
    "a module twice": ("timezone: UTC", "timezone: UTC\n  denied_modules: [rxrpc, §rxrpc]", "software.denied_modules[1]", "rxrpc occurs twice"),
    "not a module": ("timezone: UTC", "timezone: UTC\n  denied_modules: [§\"a b\"]", "software.denied_modules[0]", "must be the name of a kernel module"),
    "no mirror": ("timezone: UTC", "timezone: UTC\n  mirror: §nowhere", "software.mirror", 'there is no directory "nowhere". Create and fill it: gpucluster software fetch'),
    "mirror without a host": ("timezone: UTC", "timezone: UTC\n  mirror: §https://", "software.mirror", "is not a URL"),
    "mirror with a password": ("timezone: UTC", "timezone: UTC\n  mirror: §https://a:b@mirror.example/x", "software.mirror", "must not contain a password"),
    "proxy that is no URL": ("timezone: UTC", "timezone: UTC\n  proxy: §proxy:3128", "software.proxy", "is not the URL of a proxy"),
    "proxy with a command": ("timezone: UTC", "timezone: UTC\n  proxy: §http://proxy$(id):3128", "software.proxy", "is not the URL of a proxy"),
    "proxy with a quote": ("timezone: UTC", "timezone: UTC\n  proxy: §http://proxy\";x", "software.proxy", "is not the URL of a proxy"),
    "proxy with a path": ("timezone: UTC", "timezone: UTC\n  proxy: §http://proxy.example/x", "software.proxy", "is not the URL of a proxy"),
    "proxy with a password": ("timezone: UTC", "timezone: UTC\n  proxy: §http://a:b@proxy.example:3128", "software.proxy", "must not contain a password"),
    "exceptions without a proxy": ("timezone: UTC", "timezone: UTC\n  no_proxy: §[.example]", "software.no_proxy", "has no effect without proxy"),
    "an exception of two words": ("timezone: UTC", 'timezone: UTC\n  proxy: http://p.example:1\n  no_proxy: [§"a b"]', "software.no_proxy[0]", "must be a host, a domain or a network"),
    "no certificate": ("timezone: UTC", "timezone: UTC\n  trusted_ca_files: [§nowhere.pem]", "software.trusted_ca_files[0]", 'there is no file "nowhere.pem"'),
}  # fmt: skip


@pytest.mark.parametrize("row", ROWS.values(), ids=ROWS.keys())
def test_one_fault_is_told_once_and_at_its_place(row: tuple[str, str, str, str]) -> None:
    reported(row)
