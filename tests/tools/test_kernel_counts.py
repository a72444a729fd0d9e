"""What the kernel counts while a block runs."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from tools import kernel_counts

TRACE = """\
# tracer: nop
#
#           TASK-PID     CPU#  |||||  TIMESTAMP  FUNCTION
         python3-956     [001] ..... 74336.786178: sys_fsync(fd: 3)
   (sd-mkdcreds)-12      [000] ..... 74336.786757: sys_fdatasync(fd: 4)
 a b: sys_fsync(-7       [000] d..1. 74336.786758: sys_openat(dfd: 0xffffff9c, filename: 0x7fe3ca, flags: 0x80241)
             ssh-997     [000] ..... 74336.788828: sched_process_exec: filename=/usr/bin/ssh pid=997 old_pid=997
"""


def test_each_line_of_a_trace_is_one_event_whatever_a_program_is_called() -> None:
    assert kernel_counts.counts(TRACE) == {"syncs": 2, "files": 1, "ssh": 1}


def test_the_kernel_counts_what_a_block_does_and_nothing_stays(tmp_path: Path) -> None:
    program = tmp_path / "ssh"
    program.symlink_to("/bin/true")
    with kernel_counts.counted() as counted:
        for number in range(5):
            with (tmp_path / str(number)).open("w") as file:
                os.fsync(file.fileno())
        subprocess.run((program,), check=True)
    if not counted:
        pytest.skip("this kernel does not let us trace system calls")
    # Other programs of this machine count as well.
    assert counted["syncs"] >= 5
    assert counted["files"] >= 5
    assert counted["ssh"] >= 1


def test_the_kernel_s_tracing_is_as_before_after_a_block_that_fails() -> None:
    instances = Path("/sys/kernel/tracing/instances")
    with pytest.raises(ZeroDivisionError), kernel_counts.counted():
        _ = 1 / 0
    assert not list(instances.glob(f"gpucluster-{os.getpid()}-*"))
