"""No secret stays in evidence, whatever form it comes in; and what is not a secret stays."""

from __future__ import annotations

import json
from typing import Any

import pytest

from gpucluster.controller.scrub import HIDDEN
from gpucluster.verdict.scrubbing import scrubbed

SECRET = "hunter2-Zq8"
PEM = f"-----BEGIN OPENSSH PRIVATE KEY-----\n{SECRET}\n-----END OPENSSH PRIVATE KEY-----"


@pytest.mark.parametrize(
    "value",
    [
        {"HF_TOKEN": SECRET},
        {"env": {"AWS_SECRET_ACCESS_KEY": SECRET}},
        {"env": [f"MYSQL_PASSWORD={SECRET}", f"PGPASSFILE={SECRET}"]},
        {"secrets": {"munge": SECRET}},
        {"slurmdbd": {"StoragePass": [SECRET, {"x": SECRET}]}},
        {"/etc/gpucluster/munge.key": SECRET},
        f"export WANDB_API_KEY={SECRET} and {SECRET}\nHOME=/root",
        f"run with api_key: {SECRET}, then",
        f'password = "{SECRET} {SECRET}"',
        f"Authorization: Bearer {SECRET}",
        f"cloning https://alice:{SECRET}@example.com/x.git",
        f"here it is:\n{PEM}\nand more",
        PEM.partition("-----END")[0],
        json.dumps({"config": {"environment": {"HF_TOKEN": SECRET, "A": ["X_KEY=" + SECRET]}}}),
        json.dumps({"output": json.dumps({"deep": {"api-token": SECRET}})}),
        json.dumps({"HF_TOKEN": SECRET})[:-1],  # cut off: no JSON
    ],
)
def test_a_secret_is_removed(value: Any) -> None:
    done = json.dumps(scrubbed(value))
    assert SECRET not in done
    assert HIDDEN in done


@pytest.mark.parametrize(
    "value",
    [
        {"busbw": 479.25, "algbw": [1, 2.5], "healthy": True, "nothing": None},
        {"home_token_seen": True},
        "NCCL_IB_HCA=mlx5_0,mlx5_1\nNCCL_DEBUG=INFO",
        "a job runs in pool compute: on compute-1 and compute-2 as alice",
        "{not json",
    ],
)
def test_what_is_not_a_secret_stays(value: Any) -> None:
    assert scrubbed(value) == value


def test_a_text_that_is_json_becomes_readable() -> None:
    assert scrubbed({"output": '{"host": "n1", "findings": []}'}) == {"output": {"host": "n1", "findings": []}}


@pytest.mark.parametrize("text", ["a" * 300_000 + "=", "key" * 100_000, '"' * 100_000, "token " * 100_000])
def test_a_long_text_takes_no_longer_than_it_is(text: str) -> None:
    """Each would take hours if the time grew with the square of the length."""
    assert scrubbed(text)
