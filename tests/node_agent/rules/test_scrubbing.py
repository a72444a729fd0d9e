"""No secret stays in what is kept or leaves a host, whatever form it comes in; and what is not a secret stays."""

from __future__ import annotations

import base64
import json
import random
import string
from typing import Any

import pytest

from gpucluster.node_agent.rules.scrubbing import HIDDEN, Scrubber, is_secret_name, scrubbed, scrubbed_text

SECRET = "hunter2-Zq8"
PEM = f"-----BEGIN OPENSSH PRIVATE KEY-----\n{SECRET}\n-----END OPENSSH PRIVATE KEY-----"
RANDOM = base64.b64encode(random.Random(3).randbytes(128)).decode()


@pytest.mark.parametrize(
    "value",
    [
        {"HF_TOKEN": SECRET},
        {"env": {"AWS_SECRET_ACCESS_KEY": SECRET}},
        {"said": [f"MYSQL_PASSWORD={SECRET}", f"PGPASSFILE={SECRET}"]},
        {"secrets": {"munge": SECRET}},
        {"slurmdbd": {"StoragePass": [SECRET, {"x": SECRET}]}},
        {"/etc/gpucluster/munge.key": SECRET},
        {"kind": "Secret", "data": {"anything": SECRET}},
        f"export WANDB_API_KEY={SECRET} and {SECRET}\nHOME=/root",
        f"run with api_key: {SECRET}, then",
        f'password = "{SECRET} {SECRET}"',
        f"Authorization: Bearer {SECRET}",
        f"cloning https://alice:{SECRET}@example.com/x.git",
        f"cloning https://alice:{SECRET}/@{SECRET}@example.com/x.git",
        f"here it is:\n{PEM}\nand more",
        PEM.partition("-----END")[0],
        json.dumps({"config": {"environment": {"HF_TOKEN": SECRET, "A": ["X_KEY=" + SECRET]}}}),
        json.dumps({"output": json.dumps({"deep": {"api-token": SECRET}})}),
        json.dumps({"HF_TOKEN": SECRET})[:-1],  # cut off: no JSON
        f"AWS_SECRET_ACCESS_KEY={SECRET}",
        f"export HF_TOKEN='{SECRET}'",
        f'  "password": "{SECRET}",',
        f'"api_key" : "a\\"{SECRET}"',
        f"-----BEGIN RSA PRIVATE KEY-----\n{SECRET}\n",
        f'{{"env": ["HOME=/root", "WHATEVER={SECRET}", "NCCL_ALGO=Ring"], "results": []}}',
        f"password: |\n  {SECRET}\n  {SECRET}\nname: x",
        f"passwords:\n- {SECRET}\n- b\nname: x",
        f"apiVersion: v1\nkind: Secret\ndata:\n  anything: {SECRET}\n",
        f"Nov 29 01:02:03 n1 prog[1]: the password is {SECRET}",
        f"mysql -u root -p{SECRET} slurm_acct_db",
        f"ldapsearch -D cn=admin -w {SECRET} -b dc=x",
        f"curl -u alice:{SECRET} https://example.com",
        f"kubeadm join --token {SECRET} 10.0.0.1:6443",
        f"ALTER USER x IDENTIFIED BY '{SECRET}'",
        f"machine example.com login alice password {SECRET}",
        f"<password>{SECRET}</password>",
        f"bindpw {SECRET}",
        f'started with {{\\"password\\": \\"{SECRET}\\"}}',
    ],
)
def test_a_secret_is_removed(value: Any) -> None:
    done = json.dumps(scrubbed(value))
    assert SECRET not in done
    assert HIDDEN in done or "NCCL_ALGO=Ring" in done


@pytest.mark.parametrize(
    "secret",
    [
        "eyJhbGciOiJIUzI1NiJ9.eyJzdW4iOiJyb290In0.c2lnbmF0dXJlLW9mLWl0",
        "$y$j9T$F5Jx5fExrKuPp53xLKQ..1$X3DX6M94c7o.9agCG9G317fhZg9SqC.5i5rd.RhAtQ7",
        "{SSHA}b64d2hhdGV2ZXJpdGlzaGVyZQ==",
        "abcdef.0123456789abcdef",
        "MUNGE:AwQFAAAb64b64b64/+b64:",
        "ghp_0123456789abcdefghijABCDEFGHIJ012345",
        "AKIAIOSFODNN7EXAMPLE",
        RANDOM,
        base64.b64encode(b"StoragePass=very-secret").decode(),
    ],
)
def test_a_secret_that_stands_alone_is_found_by_its_form(secret: str) -> None:
    assert scrubbed_text(f"Nov 29 01:02:03 n1 prog[1]: it read {secret} and went on") == (
        f"Nov 29 01:02:03 n1 prog[1]: it read {HIDDEN} and went on"
    )


@pytest.mark.parametrize(
    "value",
    [
        {"busbw": 479.25, "algbw": [1, 2.5], "healthy": True, "nothing": None},
        {"home_token_seen": True},
        {"ssh_keys": ["ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIJ8Yq0sBvX3kTq2m9sW7rL5pQ4nZ1cVbN6hGfDdSaAqE alice@x"]},
        "NCCL_IB_HCA=mlx5_0,mlx5_1\nNCCL_DEBUG=INFO",
        "a job runs in pool compute: on compute-1 and compute-2 as alice",
        "{not json",
        "ocid1.instance.oc1.eu-frankfurt-1.antheljtwnzf7yqcabcdefghijklmnopqrstuvwxyz234567abcdefghijkl",
        "sha256:9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08",
        "Accepted publickey for root from 10.0.0.1 port 22: ED25519 SHA256:Xq0sBvX3kTq2m9sW7rL5pQ4nZ1cVbN6hGfDdSaAqEz8",
        "Failed password for invalid user admin from 10.0.0.1 port 22 ssh2",
        "the password is not set",
        "AuthType=auth/munge\nAuthInfo=socket=/run/munge/munge.socket.2",
        "/usr/lib/python3/dist-packages/ansible_collections/community/general/plugins/modules/Xfs_Quota2.py",
        "slurmctld: error: Nodes compute-[1-2] not responding, setting DOWN",
        "test passed: 12, monkey=3",
        "machine-id 0123456789abcdef0123456789abcdef, boot 6f1e1b9e-2f0a-4c7e-9d43-0b6a4b6c0d11",
        "node-1:1:1 [0] NCCL INFO NCCL_IB_HCA set by environment to =mlx5_0\n# Rank  0 Group  0 Pid 1 on device  0\n",
    ],
)
def test_what_is_not_a_secret_stays(value: Any) -> None:
    assert scrubbed(value) == value


@pytest.mark.parametrize(
    "name",
    ["publickey", "ssh_keys", "AuthType", "passed_tests", "keyboard", "author", "host", "private_subnet_cidr"],
)
def test_a_name_that_only_looks_like_it(name: str) -> None:
    assert not is_secret_name(name)


def test_a_text_that_is_json_becomes_readable() -> None:
    assert scrubbed({"output": '{"host": "n1", "findings": []}'}) == {"output": {"host": "n1", "findings": []}}


def test_the_environment_of_nccl_tests_keeps_how_it_was_measured() -> None:
    written = json.dumps(
        {"args": "all_reduce_perf -g 1", "env": ["A=b", 'NCCL_X="y"', "NCCL_ALGO=Ring"], "results": [1]}
    )
    kept = json.loads(scrubbed_text(written))
    assert kept == {"args": "all_reduce_perf -g 1", "env": ['NCCL_X="y"', "NCCL_ALGO=Ring"], "results": [1]}


def test_the_end_of_a_line_is_where_a_value_ends() -> None:
    assert scrubbed_text(f"MY_TOKEN={SECRET}\nbusbw=470 GB/s") == f"MY_TOKEN={HIDDEN}\nbusbw=470 GB/s"


def test_the_end_of_a_key_whose_beginning_was_cut_off() -> None:
    text = "Nov 1 n1 x[1]: aGVsbG8gd29ybGQgaGVsbG8=\nNov 1 n1 x[1]: aGVsbG8=\nn1: -----END RSA PRIVATE KEY-----\nmore"
    done = scrubbed_text(text)
    assert "aGVsbG8" not in done
    assert done.endswith("more")


def test_a_known_secret_is_removed_in_each_of_its_forms() -> None:
    known = "correct horse/battery"
    data = known.encode()
    forms = [
        known,
        data.hex(),
        base64.b64encode(data).decode(),
        *(base64.b64encode(b"x" * ahead + data + b"yy").decode()[4:-4] for ahead in (1, 2, 3)),
        "correct%20horse%2Fbattery",
    ]
    scrubber = Scrubber([known, "abc"])
    for form in forms:
        done = scrubber.text(f"unit said ({form}) abc")
        assert HIDDEN in done, form
        assert "abc" in done


def test_json_stays_json() -> None:
    done = json.loads(Scrubber([SECRET]).text(json.dumps({"note": f"it is {SECRET}", "api_key": "x" * 9, "n": 3})))
    assert done == {"note": f"it is {HIDDEN}", "api_key": HIDDEN, "n": 3}


@pytest.mark.parametrize(
    "text",
    [
        "a" * 300_000 + "=", "key" * 100_000, '"' * 100_000, "token " * 100_000, "A1b" * 100_000,
        "password is " * 50_000,
        "-----BEGIN PRIVATE KEY-----" * 10_000, "mysql -p " * 50_000, "://a:" * 50_000, "x: " * 50_000 + "token",
        "key=a " * 50_000, "<a" * 100_000 + "token", "{key=a " * 30_000,
    ],
)  # fmt: skip
def test_a_long_text_takes_no_longer_than_it_is(text: str) -> None:
    """Each would take hours if the time grew with the square of the length."""
    assert scrubbed_text(text)


def test_random_texts_are_told_from_names_and_paths() -> None:
    chance = random.Random(7)
    signs = string.ascii_letters + string.digits + "+/"
    kept = [word for _ in range(500) if scrubbed_text(word := "".join(chance.choices(signs, k=43))) == word]
    assert len(kept) <= 5, kept


def test_a_deep_value_is_no_trouble() -> None:
    assert HIDDEN in scrubbed_text("[" * 5000) + HIDDEN
    assert HIDDEN in json.dumps(scrubbed(json.loads("[" * 500 + '"x"' + "]" * 500)))
