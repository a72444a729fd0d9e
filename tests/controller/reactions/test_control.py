"""Each act once for each hang, also where the service is killed. Slurm is a double here.

tests/operations/test_reactions_slurm.py has a real one.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest

from gpucluster.controller.reactions.control import FILE, Reactions, messages_of_job
from gpucluster.controller.reactions.policy import FRESH_S, NOTICE_S, Choice, ReactionSettings, WatchedJob
from gpucluster.node_agent.errors import Failed
from gpucluster.node_agent.watch.judge import JobActivity
from gpucluster.node_agent.watch.message import ReportedJob

JOB = WatchedJob("7", "7", "RUNNING", "run-1", "gpu", frozenset({"n1", "n2"}), others=frozenset({"n3"}), age=9000)
HUNG = ReportedJob("7", JobActivity.HUNG, 240.0, "rank 1 is behind", "1", 9, "n1")
WAITS = ReportedJob("7", JobActivity.WAITING, 240.0)
REQUEUE, CANCEL = ReactionSettings(Choice.REQUEUE), ReactionSettings(Choice.CANCEL)


class KilledError(BaseException):
    """kill -9 at this point."""


@dataclass
class JobsDouble:
    """`refuses` has the words with which Slurm refuses a verb; `killed` stops the process at one, before or after."""

    job: WatchedJob | None = JOB
    done: list[tuple[str, ...]] = field(default_factory=list)
    refuses: dict[str, str] = field(default_factory=dict)
    killed: str = ""

    def look(self, numbers: Collection[str]) -> dict[str, WatchedJob]:
        return {"7": self.job} if self.job is not None and "7" in numbers else {}

    def notify(self, job: WatchedJob, text: str) -> None:
        self._do("notify", text)

    def requeue(self, job: WatchedJob, *, hold: bool) -> None:
        self._do("requeue", str(hold))
        self.job = replace(job, state="COMPLETING", run="", held=False)
        self._killed("requeued")

    def exclude(self, job: WatchedJob, node: str) -> None:
        self._do("exclude", node)

    def release(self, job: WatchedJob) -> None:
        self._do("release")
        self.job = replace(job, held=False)

    def cancel(self, job: WatchedJob) -> None:
        self._do("cancel")
        self.job = None

    def verbs(self) -> list[str]:
        return [each[0] for each in self.done]

    def _do(self, verb: str, *words: str) -> None:
        self._killed(verb)
        if verb in self.refuses:
            raise Failed(self.refuses[verb])
        self.done.append((verb, *words))

    def _killed(self, at: str) -> None:
        if self.killed == at:
            self.killed = ""
            raise KilledError


class Site:
    """A service with its folder. `again` starts it once more."""

    def __init__(self, folder: Path, settings: ReactionSettings = REQUEUE) -> None:
        self.folder, self.settings = folder, settings
        self.slurm, self.now, self.said = JobsDouble(), 1000.0, list[str]()
        self.again()

    def again(self) -> None:
        clock = {"clock": lambda: self.now, "wall": lambda: 1e9 + self.now}
        self.service = Reactions(self.folder, self.slurm, self.settings, say=self.said.append, **clock)

    def hung(self) -> None:
        self.service.hear("n1", [HUNG])
        self.now += 1
        self.service.hear("n2", [WAITS])

    def tick(self) -> None:
        self.now += 15
        self.service.tick({"10.0.0.1": "n1"}.get)  # type: ignore[arg-type]

    def twice(self) -> None:
        """The pass with the line, and that in which something is done."""
        self.tick()
        self.tick()


@pytest.fixture
def site(tmp_path: Path) -> Site:
    return Site(tmp_path)


def test_what_was_said_and_done_is_kept_for_the_owner_with_its_time(site: Site) -> None:
    assert messages_of_job(site.folder, "7") == []
    site.settings = CANCEL
    site.again()
    site.hung()
    site.tick()
    site.tick()
    site.again()
    site.tick()
    (line,) = messages_of_job(site.folder, "7")
    assert line == (
        "2001-09-09 02:03:36 UTC job 7 is hung for 4 minutes (rank 1, process 9 on n1): rank 1 is behind."
        " It is cancelled (on-hang=cancel)."
    )
    assert site.slurm.job is None, "it is gone, and its owner asks why"
    assert messages_of_job(site.folder, "8") == []
    (site.folder / FILE).write_text("[]")
    assert messages_of_job(site.folder, "7") == []


def test_lines_of_earlier_runs_stay_and_the_oldest_go(site: Site) -> None:
    for run in range(10):
        site.slurm.job = replace(JOB, run=f"run-{run}")
        site.settings = ReactionSettings()
        site.again()
        site.hung()
        site.tick()
    lines = messages_of_job(site.folder, "7")
    assert len(lines) == 8
    assert lines == sorted(lines)


def test_nothing_is_asked_while_jobs_work(site: Site) -> None:
    site.slurm.look = None  # type: ignore[method-assign,assignment]
    site.service.hear("n1", [replace_said(HUNG, state=JobActivity.WORKING)])
    site.tick()
    assert not (site.folder / FILE).exists()


def replace_said(said: ReportedJob, **changed: object) -> ReportedJob:
    return said._replace(**changed)  # type: ignore[arg-type]


def test_a_hung_job_is_told_and_requeued_without_the_node_of_the_rank(site: Site) -> None:
    site.hung()
    site.tick()
    assert site.slurm.verbs() == ["notify"], "Slurm brings the line first"
    site.tick()
    assert site.slurm.verbs() == ["notify", "requeue"]
    assert site.slurm.done[0][1] == (
        "gpucluster: job 7 is hung for 4 minutes (rank 1, process 9 on n1): rank 1 is behind."
        " It is requeued (on-hang=requeue) without n1."
    )
    assert site.slurm.done[1] == ("requeue", "True")
    # Its nodes are not free yet; then it waits, held.
    site.tick()
    assert len(site.slurm.done) == 2
    assert site.slurm.job is not None
    site.slurm.job = replace(site.slurm.job, state="PENDING", held=True)
    site.tick()
    site.tick()
    assert site.slurm.done[2:] == [("exclude", "n1"), ("release",)]


def test_the_node_is_known_by_an_address(site: Site) -> None:
    site.service.hear("n2", [replace_said(HUNG, host="10.0.0.1")])
    site.service.hear("n1", [WAITS])
    site.tick()
    assert site.slurm.done[0][1].endswith("without n1.")


def test_a_hang_is_told_once_also_after_a_restart(site: Site) -> None:
    site.settings = ReactionSettings()
    site.again()
    for _ in range(2):
        site.hung()
        site.tick()
        site.tick()
        site.again()
    assert site.slurm.verbs() == ["notify"]
    # The job goes on, and hangs again.
    site.service.hear("n2", [replace_said(WAITS, state=JobActivity.WORKING)])
    site.tick()
    site.hung()
    site.tick()
    assert site.slurm.verbs() == ["notify", "notify"]


@pytest.mark.parametrize("at", ["notify", "cancel"])
def test_a_service_that_was_killed_cancels_the_job_if_it_still_hangs(tmp_path: Path, at: str) -> None:
    site = Site(tmp_path, CANCEL)
    site.slurm.killed = at
    site.hung()
    with pytest.raises(KilledError):
        site.twice()
    site.again()
    site.tick()
    assert "cancel" not in site.slurm.verbs()  # nothing is known of the job yet
    site.hung()
    site.tick()
    site.tick()
    assert site.slurm.verbs() == (["notify", "cancel"] if at == "cancel" else ["cancel"])


def test_a_job_that_has_gone_on_meanwhile_is_not_cancelled(tmp_path: Path) -> None:
    site = Site(tmp_path, CANCEL)
    site.slurm.killed = "cancel"
    site.hung()
    with pytest.raises(KilledError):
        site.twice()
    site.again()
    site.service.hear("n1", [replace_said(HUNG, state=JobActivity.WORKING)])
    site.tick()
    site.now += FRESH_S
    site.tick()
    assert site.slurm.verbs() == ["notify", "notify"]
    assert site.slurm.done[1][1] == "gpucluster: job 7 goes on: it is not cancelled."
    assert len(messages_of_job(site.folder, "7")) == 2


def test_slurm_has_its_time_for_the_line(site: Site) -> None:
    site.hung()
    site.tick()
    site.now += NOTICE_S - 1
    site.service.tick()
    assert site.slurm.verbs() == ["notify"]
    site.now += 1
    site.service.tick()
    assert site.slurm.verbs() == ["notify", "requeue"]


def test_a_clock_that_was_set_back_holds_nothing_up(site: Site) -> None:
    site.hung()
    site.tick()
    site.service._wall = lambda: 1.0
    site.tick()
    assert site.slurm.verbs() == ["notify", "requeue"]


def test_a_service_that_was_killed_after_the_requeue_releases_the_job(site: Site) -> None:
    site.slurm.killed = "requeued"
    site.hung()
    with pytest.raises(KilledError):
        site.twice()
    site.again()
    assert site.slurm.job is not None
    site.slurm.job = replace(site.slurm.job, state="PENDING", held=True)
    site.tick()
    assert site.slurm.verbs() == ["notify", "requeue", "exclude", "release"]


def test_a_job_that_may_not_be_requeued_stays_and_reports_it(site: Site) -> None:
    site.slurm.refuses["requeue"] = "Slurm refused: Requested operation is presently disabled for job 7"
    site.hung()
    site.tick()
    site.hung()
    site.tick()
    assert site.slurm.verbs() == ["notify", "notify"]
    assert site.slurm.done[1][1].startswith(
        "gpucluster: Slurm does not requeue job 7. It stays as it is. Slurm refused"
    )


def test_an_act_is_tried_three_times(tmp_path: Path) -> None:
    site = Site(tmp_path, CANCEL)
    site.slurm.refuses["cancel"] = "Unable to contact slurm controller"
    for _ in range(6):
        site.hung()
        site.tick()
    assert len([words for words in site.said if "tried again" in words]) == 2
    assert site.slurm.verbs() == ["notify", "notify"]


def test_a_node_that_slurm_does_not_exclude_holds_no_job(site: Site) -> None:
    site.slurm.refuses["exclude"] = "Invalid node name"
    site.hung()
    site.tick()
    site.tick()
    assert site.slurm.job is not None
    site.slurm.job = replace(site.slurm.job, state="PENDING", held=True)
    for _ in range(4):
        site.tick()
    assert site.slurm.verbs() == ["notify", "requeue", "release"]


def test_output_that_takes_no_line_stops_nothing(tmp_path: Path) -> None:
    site = Site(tmp_path, CANCEL)
    site.slurm.refuses["notify"] = "job notify failure"
    site.hung()
    site.tick()
    site.tick()
    assert site.slurm.verbs() == ["cancel"]
    assert any("its output has no line" in words for words in site.said)


def test_of_a_job_that_is_gone_the_lines_stay_for_a_week(tmp_path: Path) -> None:
    site = Site(tmp_path, ReactionSettings())
    site.hung()
    site.tick()
    site.slurm.job = None
    site.tick()
    assert len(messages_of_job(site.folder, "7")) == 1
    site.now += 8 * 86400
    site.slurm.job = replace(JOB, id="8", name="8")
    site.service.hear("n1", [replace_said(HUNG, job_id="8")])
    site.slurm.look = lambda _numbers: {"8": site.slurm.job}  # type: ignore[method-assign,assignment,dict-item]
    site.service.hear("n2", [replace_said(WAITS, job_id="8")])
    site.tick()
    assert (len(messages_of_job(site.folder, "7")), len(messages_of_job(site.folder, "8"))) == (0, 1)


def test_a_damaged_file_stops_nothing(site: Site) -> None:
    (site.folder / FILE).write_text("{")
    site.hung()
    site.tick()
    site.tick()
    assert site.slurm.verbs() == ["notify", "requeue"]
    assert "can't be read" in site.said[0]
