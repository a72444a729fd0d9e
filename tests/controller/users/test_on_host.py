"""The program that ends what users run on a host."""

from __future__ import annotations

import os
from pathlib import Path

from gpucluster.controller.users import on_host


def test_what_cron_and_at_would_start_goes_with_its_owner(tmp_path: Path) -> None:
    crontabs = tmp_path / "crontabs"
    crontabs.mkdir()
    mine, other = crontabs / "alice", crontabs / "bob"
    for file in (mine, other):
        file.write_text("* * * * * date\n")
    os.chown(mine, os.geteuid(), -1)
    on_host.delete_scheduled(os.geteuid() + 1, (str(tmp_path / "nowhere"), str(tmp_path), str(crontabs)))
    assert mine.exists()
    on_host.delete_scheduled(os.geteuid(), (str(tmp_path / "nowhere"), str(tmp_path), str(crontabs)))
    assert list(tmp_path.rglob("*")) == [crontabs]
