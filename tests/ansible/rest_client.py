"""Runs where the REST API answers: a job is listed, submitted and cancelled by a client that others have made.

    python rest_client.py URL CA VERSION < token

The client is `slurmrestapi` of PyPI, which OpenAPI Generator has made of SchedMD's description. PYTHONPATH has it.
"""

from __future__ import annotations

import json
import sys
from typing import Any

import slurmrestapi
from slurmrestapi import models
from slurmrestapi.api.slurm_api import SlurmApi


def main(url: str, authority: str, version: str) -> None:
    """Print what the client was told, as JSON."""
    settings = slurmrestapi.Configuration(host=url, ssl_ca_cert=authority, access_token=sys.stdin.read().strip())
    prefix, types = f"slurm_{version}", version.upper()
    description = getattr(models, f"{types}JobDescMsg")(
        name=f"rest-{version}",
        script="#!/bin/sh\nsleep 600\n",
        environment=["PATH=/bin"],
        current_working_directory="/tmp",
    )
    request = getattr(models, f"{types}JobSubmitReq")(job=description)
    with slurmrestapi.ApiClient(settings) as client:
        api = SlurmApi(client)
        submitted = getattr(api, f"{prefix}_post_job_submit")(request)
        job = submitted.job_id
        before = states(getattr(api, f"{prefix}_get_jobs")(), job)
        getattr(api, f"{prefix}_delete_job")(str(job))
        # It waited for a node, so it ends at once.
        after = states(getattr(api, f"{prefix}_get_jobs")(), job)
    print(json.dumps({"job": job, "before": before, "after": after}))


def states(answer: Any, job: int) -> list[str]:
    """The states of a job in an answer."""
    (found,) = (each for each in answer.jobs if each.job_id == job)
    return [str(getattr(state, "value", state)) for state in found.job_state]


if __name__ == "__main__":
    main(*sys.argv[1:])
