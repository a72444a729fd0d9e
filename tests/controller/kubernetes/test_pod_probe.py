"""The program that runs in a pod of `verify`: it needs nothing of gpucluster, and names what it does not reach."""

from __future__ import annotations

import subprocess
import sys
import threading
import zipfile
from pathlib import Path

from gpucluster.controller.kubernetes import pod_probe
from tests.addresses import free_port
from tests.waiting import wait_for


def test_the_probe_reaches_a_server_and_reports_why_not() -> None:
    port = free_port()
    assert "refused" in pod_probe.reach("127.0.0.1", "127.0.0.1", port)
    threading.Thread(target=pod_probe.serve, args=(port,), daemon=True).start()
    wait_for("the probe reaches the server", lambda: pod_probe.reach("127.0.0.1", "127.0.0.1", port) == "")


def test_the_probe_is_found_in_the_archive_that_hosts_have(tmp_path: Path) -> None:
    import gpucluster

    whole = Path(gpucluster.__file__).parent
    with zipfile.ZipFile(tmp_path / "agent", "w") as archive:
        for file in (*whole.glob("*.py"), *whole.glob("controller/**/*.py"), *whole.glob("node_agent/**/*.py")):
            archive.write(file, file.relative_to(whole.parent))
    code = "from gpucluster.controller.kubernetes import pod_checks as p; print(p.__file__, len(p._probe()))"
    done = subprocess.run([sys.executable, "-c", code], env={"PYTHONPATH": str(tmp_path / "agent")}, check=True,
                          capture_output=True, text=True, cwd=tmp_path)  # fmt: skip
    place, length = done.stdout.split()
    assert (place.startswith(str(tmp_path)), int(length)) == (True, len(Path(pod_probe.__file__).read_text()))


def test_the_probe_needs_nothing_of_gpucluster() -> None:
    assert "gpucluster." not in Path(pod_probe.__file__).read_text("utf-8")
