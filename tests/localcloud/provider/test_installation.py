"""The installed program of the stand-in provider."""

from __future__ import annotations

import os
import stat
import subprocess
from pathlib import Path

from gpucluster.localcloud.provider import installation

ADDRESS = "example.test/oracle/oci"


def test_installing_twice_changes_nothing_and_the_package_is_the_same_everywhere(tmp_path: Path) -> None:
    installation.install(tmp_path / "one", ADDRESS)
    installation.install(tmp_path / "two", ADDRESS)
    (program,) = (tmp_path / "one" / ADDRESS / installation.VERSION).glob(
        f"*/terraform-provider-oci_v{installation.VERSION}"
    )
    other = tmp_path / "two" / program.relative_to(tmp_path / "one")
    # Terraform keeps a checksum of the package; it must not depend on this machine's Python or folders.
    assert program.read_bytes() == other.read_bytes()
    assert str(tmp_path) not in program.read_text()
    assert stat.S_IMODE(program.stat().st_mode) & stat.S_IXUSR
    before = program.stat().st_mtime_ns, (tmp_path / "one" / "launch").stat().st_mtime_ns
    installation.install(tmp_path / "one", ADDRESS)
    assert before == (program.stat().st_mtime_ns, (tmp_path / "one" / "launch").stat().st_mtime_ns)
    assert sorted(path.name for path in (tmp_path / "one").iterdir()) == ["example.test", "launch"]


def test_the_installed_program_starts_from_anywhere_and_reports_what_it_is(tmp_path: Path) -> None:
    """A folder of the working directory that is named like the package must not be taken for it."""
    installation.install(tmp_path / "a b", ADDRESS)
    (program,) = (tmp_path / "a b" / ADDRESS / installation.VERSION).glob("*/*")
    (tmp_path / "gpucluster").mkdir()
    (tmp_path / "gpucluster" / "__init__.py").write_text("raise SystemExit('the wrong one')\n")
    linked = tmp_path / "linked"
    linked.symlink_to(program.parent)
    environment = {"PATH": os.environ["PATH"], "PYTHONPATH": str(tmp_path)}
    done = subprocess.run(
        [linked / program.name], cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout) == (1, "")
    assert "Terraform starts it" in done.stderr
