"""What the output of a training with PyTorch means."""

from __future__ import annotations

import json

import pytest

from gpucluster.jobs.model import HEADER
from gpucluster.node_agent.checks.model import Status
from tests.jobs.templates.test_nccl_tests import job, judged, messages

# --- pytorch_ddp -----


def epochs(*accuracy: float, ranks: int = 2, first: int = 1, loss: float = 2.0) -> str:
    return "".join(
        json.dumps(
            {"epoch": number, "loss": loss / number, "accuracy": each, "seconds": 4.4, "images_per_second": 11000.0,
             "ranks": ranks}
        ) + "\n"
        for number, each in enumerate(accuracy, start=first)
    )  # fmt: skip


GOOD = [0.3, 0.4, 0.5, 0.55, 0.6, 0.65, 0.7, 0.75, 0.78, 0.8046]


@pytest.mark.parametrize(
    ("text", "settings", "status", "said"),
    [
        (epochs(*GOOD), {}, Status.PASS, "accuracy 0.8046 after 10 epochs reaches 0.8"),
        (epochs(*GOOD[:-1], 0.79), {}, Status.FAIL, "is below 0.8"),
        (epochs(*GOOD), {"expect": "0.85"}, Status.FAIL, "is below 0.85"),
        (epochs(*GOOD, ranks=1), {}, Status.FAIL, "1 took part, and not 2"),
        (epochs(*GOOD[:5]), {}, Status.UNKNOWN, "ends after 5 of 10 epochs"),
        ("", {}, Status.UNKNOWN, "no epoch was finished"),
        ('{"epoch": 1, "loss": NaN}\n', {}, Status.UNKNOWN, "no epoch was finished"),
        (epochs(0.2, 0.5), {"epochs": "2", "synthetic": "10"}, Status.PASS, "only the loss is judged"),
        (epochs(0.2, 0.5), {"epochs": "2"}, Status.PASS, "fewer epochs than 10"),
        (epochs(*GOOD), {"batch": "2048"}, Status.PASS, "set a smaller batch"),
    ],
)
def test_a_training_is_judged(text: str, settings: dict[str, str], status: Status, said: str) -> None:
    result = judged(job("pytorch_ddp", settings=settings), text)
    assert result.status is status
    assert said in messages(result)


def test_a_loss_that_does_not_fall_is_bad() -> None:
    text = epochs(0.1, loss=1.0) + epochs(0.1, first=2, loss=4.0)
    assert judged(job("pytorch_ddp", settings={"epochs": "2", "synthetic": "10"}), text).status is Status.FAIL


def test_a_requeued_training_has_all_its_epochs() -> None:
    of = job("pytorch_ddp")
    header = HEADER + json.dumps(of.to_dict())
    text = f"{header}\n{epochs(*GOOD[:4])}{header}\n{epochs(*GOOD[4:], first=5)}"
    result = judged(of, text)
    assert result.status is Status.PASS
    assert [step["epoch"] for step in result.steps] == list(range(1, 11))
