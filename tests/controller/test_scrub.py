"""Evidence has no secrets, and still shows how it was measured."""

from __future__ import annotations

import json

import pytest

from gpucluster.controller.scrub import HIDDEN, scrubbed

SECRET = "hunter2-hunter2"


@pytest.mark.parametrize(
    "text",
    [
        f"AWS_SECRET_ACCESS_KEY={SECRET}",
        f"export HF_TOKEN='{SECRET}'",
        f'  "password": "{SECRET}",',
        f'"api_key" : "a\\"{SECRET}"',
        f"https://alice:{SECRET}@registry.example/v2/",
        f"Authorization: Bearer {SECRET}",
        f"-----BEGIN OPENSSH PRIVATE KEY-----\n{SECRET}\n-----END OPENSSH PRIVATE KEY-----\n",
        f"-----BEGIN RSA PRIVATE KEY-----\n{SECRET}\n",
        f'{{"env": ["HOME=/root", "WHATEVER={SECRET}", "NCCL_ALGO=Ring"], "results": []}}',
    ],
)
def test_a_secret_is_removed(text: str) -> None:
    assert SECRET in text
    assert SECRET not in scrubbed(text)


def test_what_was_measured_stays() -> None:
    text = (
        "node-1:1:1 [0] NCCL INFO NCCL_IB_HCA set by environment to =mlx5_0\n# Rank  0 Group  0 Pid 1 on a device  0\n"
    )
    assert scrubbed(text) == text
    written = json.dumps(
        {"args": "all_reduce_perf -g 1", "env": ["A=b", 'NCCL_X="y"', "NCCL_ALGO=Ring"], "results": [1]}
    )
    kept = json.loads(scrubbed(written))
    assert kept == {"args": "all_reduce_perf -g 1", "env": ['NCCL_X="y"', "NCCL_ALGO=Ring"], "results": [1]}


def test_the_end_of_a_line_is_where_a_value_ends() -> None:
    assert scrubbed(f"MY_TOKEN={SECRET}\nbusbw=470 GB/s") == f"MY_TOKEN={HIDDEN}\nbusbw=470 GB/s"
