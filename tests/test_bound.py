"""What ends with the process that starts it."""

from __future__ import annotations

import subprocess
from pathlib import Path

from gpucluster.process import bound


def test_a_command_runs_with_its_words_and_ends_with_its_status() -> None:
    done = subprocess.run(
        bound.to_this_process(["sh", "-c", "echo $0; exit 3", "two words"]), capture_output=True, check=False
    )
    assert (done.stdout, done.returncode) == (b"two words\n", 3)


def test_a_command_whose_parent_has_ended_before_it_was_bound_does_not_begin(tmp_path: Path) -> None:
    # Another parent than this process: as where this one has ended meanwhile.
    other = ["sh", "-c", '"$@"; status=$?; exit $status', "sh"]
    file = tmp_path / "begun"
    done = subprocess.run([*other, *bound.to_this_process(["touch", str(file)])], check=False)
    assert done.returncode == 1
    assert not file.exists()
