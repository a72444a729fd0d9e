"""What two hosts have in common: listed from a tree, and compared."""

from __future__ import annotations

import os
from pathlib import Path

from gpucluster.node_agent.standby import manifest


def test_a_listing_has_files_folders_and_links_and_nothing_of_the_host_itself(tmp_path: Path) -> None:
    for name in ("etc/slurm", "etc/netplan", "var/lib/mysql", "usr/bin"):
        (tmp_path / name).mkdir(parents=True)
    (tmp_path / "etc/slurm/slurm.conf").write_text("one\n")
    (tmp_path / "etc/netplan/own.yaml").write_text("own\n")
    (tmp_path / "var/lib/mysql/ibdata1").write_text("state\n")
    (tmp_path / "usr/bin/x").symlink_to("y")
    os.mkfifo(tmp_path / "etc/pipe")
    found = manifest.listing(tmp_path)
    assert sorted(found) == ["/etc/slurm", "/etc/slurm/slurm.conf", "/usr/bin", "/usr/bin/x"]
    assert found["/usr/bin/x"][-1] == "y"
    assert found["/etc/slurm/slurm.conf"][4] == len("one\n")


def test_what_differs_is_sent_and_what_is_too_much_is_removed_where_that_is_safe() -> None:
    source = {"/etc/a": ["f", 0o644, 0, 0, 1, 100], "/etc/b": ["d", 0o755, 0, 0]}
    target = {
        "/etc/a": ["f", 0o644, 0, 0, 1, 101],
        "/etc/b": ["d", 0o755, 0, 0],
        "/etc/c": ["f", 0o644, 0, 0, 1, 1],
        "/var/lib/own": ["f", 0o644, 0, 0, 1, 1],
    }
    found = manifest.compare(source, target)
    assert (found.send, found.remove, found.paths) == (("/etc/a",), ("/etc/c",), ("/etc/a", "/etc/c"))
    assert manifest.compare(source, source).paths == ()
