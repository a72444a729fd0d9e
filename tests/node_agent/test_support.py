"""What a support bundle takes from a host: bounds, what is missing, and the secrets that the host knows."""

from __future__ import annotations

import base64
import fnmatch
import json
import sys
from pathlib import Path

from gpucluster.node_agent import support
from gpucluster.node_agent.rules.scrubbing import Scrubber
from gpucluster.node_agent.support import Collected, Source, collect, known_secrets, units_of
from tests.node_agent.processes import LONG


def text_of(name: str) -> str:
    return name


def test_the_journals_of_our_units_are_taken() -> None:
    listed = (
        "slurmd.service loaded active running x\ngpucluster-health.service loaded failed failed x\n"
        "user@1000.service loaded active running x\nsssd.socket loaded active listening x\n"
    )
    assert units_of(listed) == ["gpucluster-health.service", "slurmd.service"]


def test_of_a_long_file_the_end_stays_and_it_is_named(tmp_path: Path) -> None:
    (tmp_path / "a.log").write_text("".join(f"line {number}\n" for number in range(1000)))
    into = Collected(10_000)
    collect(Source("logs", path=f"{tmp_path}/*.log"), into, text_of, 100, 5)
    assert into.files["logs/a.log"].endswith("line 999\n")
    assert into.files["logs/a.log"].startswith("line 9")
    assert into.cut == ["logs/a.log"]


def test_no_key_no_link_and_no_pipe_is_read(tmp_path: Path) -> None:
    (tmp_path / "jwt.key").write_text("x")
    (tmp_path / "link").symlink_to("/etc/shadow")
    into = Collected(10_000)
    collect(Source("slurm", path=f"{tmp_path}/*"), into, text_of, 100, 5)
    assert into.files == {}
    assert set(into.missing) == {"slurm/jwt.key", "slurm/link"}


def test_what_has_no_room_is_named(tmp_path: Path) -> None:
    for name in ("a", "b"):
        (tmp_path / name).write_text("x" * 80)
    into = Collected(100)
    collect(Source("all", path=f"{tmp_path}/*"), into, text_of, 1000, 5)
    assert list(into.files) == ["all/a"]
    assert "no room" in into.missing["all/b"]


def test_a_program_that_fails_hangs_or_is_not_there() -> None:
    into = Collected(10_000)
    collect(Source("fails", (sys.executable, "-c", "print('x'); raise SystemExit(3)")), into, text_of, 1000, LONG)
    collect(Source("hangs", ("sleep", "600")), into, text_of, 1000, 0.2)
    collect(Source("none", ("gpucluster-no-such-program",)), into, text_of, 1000, 5)
    assert into.files["fails"].startswith("x\n\n[")
    assert "did not answer" in into.missing["hangs"]
    assert into.missing["none"] == "gpucluster-no-such-program is not installed here"


def test_what_had_no_time_is_named() -> None:
    into = Collected(10_000)
    into.add("logs/a", "x", cut=False)
    assert json.loads(into.snapshot(["logs", "late"]))["missing"] == {"late": "no time: it did not end"}


def test_a_secret_of_the_host_is_found_without_a_name_before_it(tmp_path: Path) -> None:
    key = bytes(range(1, 129))
    (tmp_path / "munge.key").write_bytes(key)
    (tmp_path / "slurmdbd.conf").write_text(
        "DbdHost=x\nkey_type = password\nAuthToken=/run/x.socket\nStoragePass=correct-horse\nStorageUser=slurm\n"
    )
    (tmp_path / "hosts.json").write_text(json.dumps({"compute-1": "battery-staple"}))
    (tmp_path / "admin-password").write_text("tr0ub4dor\n")
    clean = Scrubber(known_secrets([f"{tmp_path}/*"])).text
    coded = base64.b64encode(key).decode()
    done = clean(f"a correct-horse b battery-staple c tr0ub4dor d {key.hex()} e {coded} slurm password /run/x.socket")
    assert done == "a [removed] b [removed] c [removed] d [removed] e [removed] slurm password /run/x.socket"


def test_everything_of_a_host_ends_in_time() -> None:
    whole = json.loads(support.run(controller=True, since=1, room=1_000_000, seconds=LONG))
    assert "Linux" in whole["files"]["system/kernel.txt"]
    assert set(whole["files"]) | set(whole["missing"]) >= {"slurm/sinfo.txt", "system/failed-units.txt"}


def test_names_of_hosts_accounts_and_users_are_not_taken_for_secrets() -> None:
    """Records of this folder name what a bundle is about; with hosts.json they are all that is there."""
    folder = "/var/lib/gpucluster-directory"
    secret = {f"{folder}/hosts.json"}
    others = {f"{folder}/{name}.json" for name in ("billed-hosts", "slurm-accounts", "written")}
    read = {file for file in secret | others for pattern in support._WITH_SECRETS if fnmatch.fnmatch(file, pattern)}
    assert read == secret
