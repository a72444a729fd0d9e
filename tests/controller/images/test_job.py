"""The job of an import: it ends with who waits for it, and its last words are reported."""

from __future__ import annotations

import os
import signal

import pytest

from gpucluster.controller.images import job
from tests.controller.images.image_site import NAME, SLOW, URI, USER, Controller, until_it_waits
from tests.waiting import PATIENCE_S

pytestmark = [pytest.mark.skipif(os.geteuid() != 0, reason="the program is root's"), pytest.mark.slow]


def test_who_goes_away_takes_the_job_along(controller: Controller) -> None:
    """A lost connection, as after Ctrl-C: the pipes are closed, and no signal comes."""
    controller.enroot(SLOW)
    child = controller.start("image.import", uri=URI, user=USER)
    assert child.stdout is not None
    assert child.stderr is not None
    until_it_waits(child)
    child.stdout.close()
    child.stderr.close()
    assert child.wait(timeout=PATIENCE_S) == 130
    assert controller.told("scancel.words").split() == ["--quiet", f"--user={USER}", f"--name=gpucluster-image/{NAME}"]
    assert controller.left() == []


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_takes_the_job_along(controller: Controller, number: int) -> None:
    controller.enroot(SLOW)
    child = controller.start("image.import", uri=URI, user=USER)
    assert child.stderr is not None
    until_it_waits(child)
    child.send_signal(number)
    out, _ = child.communicate(timeout=PATIENCE_S)
    assert (child.returncode, out, controller.left()) == (130, "", [])
    assert controller.told("scancel.words")


def test_bars_of_progress_are_no_news() -> None:
    assert job.shown_line("[===========|            ] 512/1024  50%") == ""
    for figure in ("Number of inodes 39", "43.57% of uncompressed filesystem size", "compressed xattrs", "root (0)"):
        assert job.shown_line(figure) == ""
    assert job.shown_line("FATAL ERROR: Failed to create thread") != ""
    assert job.shown_line("\x1b[32m[INFO]\x1b[0m Extracting image layers...") == "[INFO] Extracting image layers..."
    assert "\x1b" not in job.shown_line("\x1b]0;title\x07 words")
