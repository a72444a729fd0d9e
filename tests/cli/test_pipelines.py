"""The pipelines of docs/how-to/pipelines: their keys, and their steps with the same commands on the local cloud.

A merge request is a commit in a bare repository; a runner is a clone of it. gpucluster, git, jq and curl are real, and
gpucluster authenticates with the ID token of the job. tests/e2e/test_drift.py runs plan, apply and drift on a cluster.

What this does not prove: that GitHub, GitLab and OCI DevOps accept the files and run the steps so.
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.cli.pipeline_steps import FOLDER, SYSTEMS, Step, document, run, steps
from tests.doubles.ci_services import COMMENT_TOKEN, JOB_TOKEN, gitlab, programs
from tests.doubles.ci_system import AUDIENCE, CLIENT, SECRET, CiSystem, ci_system
from tests.localcloud.api_harness import Api, running

SECRETS = (SECRET, JOB_TOKEN, COMMENT_TOKEN, "planted-ssh-key")
CLUSTER = """\
version: 1
name: ci
cloud: {{provider: local, auth: oidc, oidc: {{domain_url: "{domain}", client_id: {client}, audience: {audience}}}}}
network:
  vcn_cidr: 10.97.0.0/16
  public_subnet_cidr: 10.97.0.0/24
  private_subnet_cidr: 10.97.1.0/24
  ssh_allowed_cidrs: [127.0.0.0/8]
pools: {{compute: {{shape: BM.GPU4.8, count: {count}}}}}
"""


@dataclass(frozen=True)
class Site:
    """A bare repository with cluster.yml, what the CI system has kept, and a runner's variables."""

    folder: Path
    api: Api
    ci: CiSystem
    urls: str

    @property
    def kept(self) -> Path:
        return self.folder / "kept"

    def git(self, *command: str, cwd: Path | None = None) -> str:
        identity = ("-c", "user.name=ci", "-c", "user.email=ci@example.org")
        done = subprocess.run(
            ["git", *identity, *command], cwd=cwd or self.folder, check=True, capture_output=True, text=True
        )
        return done.stdout.strip()

    def commit(self, branch: str, *, count: int) -> None:
        clone = self.folder / "operator"
        if not clone.exists():
            self.git("clone", "-q", "repository.git", "operator")
        self.git("checkout", "-q", "-B", branch, cwd=clone)
        text = CLUSTER.format(domain=self.api.endpoint, client=CLIENT, audience=AUDIENCE, count=count)
        (clone / "cluster.yml").write_text(text)
        self.git("add", ".", cwd=clone)
        self.git("commit", "-q", "--allow-empty", "-m", f"{count} nodes", cwd=clone)
        self.git("push", "-q", "-f", "origin", branch, cwd=clone)

    def runner(self, branch: str) -> Path:
        """A new clone, as every job has."""
        where = self.folder / "runner"
        shutil.rmtree(where, ignore_errors=True)
        self.git("clone", "-q", "-b", branch, "repository.git", "runner")
        return where

    def env(self, runner: Path) -> dict[str, str]:
        path = f"{self.folder / 'bin'}:{Path(sys.executable).parent}:/usr/local/bin:/usr/bin:/bin"
        return {
            "PATH": path, "PYTHONPATH": str(FOLDER.parents[2]), "GPUCLUSTER_HOME": str(self.api.home),
            "KEPT": str(self.kept), "SSH_KEY": "planted-ssh-key",
            # of GitHub
            "GITHUB_REPOSITORY": "example/site", "GITHUB_ENV": str(runner.parent / "env"), "NUMBER": "7",
            "GITHUB_OUTPUT": str(self.kept / "output"), "GITHUB_STEP_SUMMARY": str(self.kept / "summary"),
            "GH_TOKEN": "planted",
            # of GitLab
            "CI_API_V4_URL": self.urls, "CI_PROJECT_ID": "5", "CI_MERGE_REQUEST_IID": "7",
            "CI_JOB_TOKEN": JOB_TOKEN, "COMMENT_TOKEN": COMMENT_TOKEN,
            # of OCI DevOps
            "PLAN_REPOSITORY": "plans", "PULL_REQUEST_ID": "7",
            # The methods of these systems are others; here it is the session of a job for each.
            "GPUCLUSTER_OIDC_CLIENT_SECRET": SECRET, "GPUCLUSTER_ID_TOKEN": self.ci.token(),
        }  # fmt: skip

    def job(self, system: str, job: str, branch: str, upto: str = "") -> subprocess.CompletedProcess[str]:
        """Run a job in a new clone, up to a step that fails. Returns the last step's end, with all output."""
        runner = self.runner(branch)
        output, done = "", None
        for step in steps(system, job):
            mine = Step(step.name, step.script, step.flags, {**step.env, "GPUCLUSTER_CLOUD_AUTH": "oidc"})
            done = run(mine, runner, self.env(runner))
            output += done.stdout + done.stderr
            if done.returncode:
                break
        assert done is not None
        assert not [secret for secret in SECRETS if secret in output]
        if system == "github" and job == "plan" and not done.returncode:
            self._upload(runner)
        return subprocess.CompletedProcess(done.args, done.returncode, output, "")

    def _upload(self, runner: Path) -> None:
        """What actions/upload-artifact does with the values in the file."""
        [given] = [
            each["with"] for each in document("github.yml")["jobs"]["plan"]["steps"] if "path" in each.get("with", {})
        ]
        tree = (self.kept / "output").read_text().strip().removeprefix("tree=")
        shutil.copy(runner / given["path"], self.kept / given["name"].replace("${{ steps.plan.outputs.tree }}", tree))


@pytest.fixture(scope="module")
def api(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Api]:
    with running(tmp_path_factory.mktemp("cloud")) as started:
        yield started


@pytest.fixture
def site(api: Api, tmp_path: Path) -> Iterator[Site]:
    (tmp_path / "kept").mkdir()
    programs(tmp_path / "bin")
    with ci_system() as ci, gitlab(tmp_path / "kept") as urls:
        ci.trusted_by(api.home)
        ci.seconds = 3600  # a job has several commands, and one token
        made = Site(tmp_path, api, ci, urls)
        made.git("init", "-q", "--bare", "-b", "main", "repository.git")
        made.commit("main", count=1)
        yield made


@pytest.mark.slow
@pytest.mark.parametrize("system", SYSTEMS)
def test_a_plan_is_a_comment_and_only_that_plan_is_applied(system: str, site: Site) -> None:
    site.commit("change", count=2)
    planned = site.job(system, "plan", "change")
    assert planned.returncode == 0, planned.stdout
    comment = (site.kept / "comment").read_text()
    assert "compute-2" in comment
    [plan] = site.kept.glob("cluster-plan-*")
    tree = site.git("rev-parse", "change^{tree}", cwd=site.folder / "operator")
    assert plan.name == f"cluster-plan-{tree}"
    assert json.loads(plan.read_text())["world"]["fields"]["pools"]["compute"]["count"] == 2

    unreviewed = site.job(system, "apply", "main")
    assert unreviewed.returncode == 9
    assert "no reviewed plan of these files" in unreviewed.stdout

    site.git("push", "-q", "origin", "change:main", cwd=site.folder / "operator")
    other = json.loads(plan.read_text())
    other["world"]["fields"]["pools"]["compute"]["count"] = 3
    plan.write_text(json.dumps(other))
    moved = site.job(system, "apply", "main")
    assert moved.returncode == 9, moved.stdout
    assert "pools.compute.count" in moved.stdout
    assert site.api.network.list_vcns(site.api.tenancy).data == [], "nothing was made"


@pytest.mark.slow
def test_a_change_that_is_wrong_fails_the_job_with_its_code(site: Site) -> None:
    site.commit("change", count=-1)
    for system in SYSTEMS:
        refused = site.job(system, "plan", "change")
        assert refused.returncode == 2, refused.stdout
        assert "pools.compute.count" in refused.stdout
    assert not list(site.kept.glob("cluster-plan-*"))
    assert not (site.kept / "comment").exists()


@pytest.mark.slow
def test_a_job_without_the_trust_of_the_domain_is_told_what_to_compare(site: Site) -> None:
    site.ci.trusted_by(site.api.home, clientClaimValues=["another"])
    refused = site.job("gitlab", "plan", "main")
    assert refused.returncode == 1
    assert "the claim aud is not one that is trusted" in refused.stdout
    assert f'aud "{AUDIENCE}"' in refused.stdout


@pytest.mark.slow
def test_drift_of_no_cluster_fails_with_its_own_code(site: Site) -> None:
    ended = site.job("gitlab", "drift", "main")
    assert ended.returncode == 1
    assert "could not be looked for" in ended.stdout


@pytest.mark.parametrize("system", SYSTEMS)
@pytest.mark.parametrize(
    ("code", "words"),
    [(0, ""), (10, "changed by hand"), (11, "not everything could be compared"), (4, "could not be looked for")],
)
def test_the_nightly_job_ends_as_drift_does(system: str, code: int, words: str, tmp_path: Path) -> None:
    found = {"area": "files", "where": "compute-1", "name": "/etc/motd", "expected": "a", "seen": "b"}
    result = {"name": "drift", "data": {"findings": [found] if code == 10 else []}}
    programs(tmp_path / "bin")
    stand_in = tmp_path / "bin" / "gpucluster"
    stand_in.write_text(f"#!/bin/sh\necho '{{}}'\necho '{json.dumps(result)}'\nexit {code}\n")
    stand_in.chmod(0o755)
    clone = tmp_path / "clone"
    subprocess.run(["git", "init", "-q", str(clone)], check=True)
    identity = ["-c", "user.name=ci", "-c", "user.email=ci@example.org"]
    subprocess.run(["git", *identity, "commit", "-q", "--allow-empty", "-m", "a"], cwd=clone, check=True)
    env = {
        "PATH": f"{tmp_path / 'bin'}:/usr/bin:/bin", "SSH_KEY": "planted-ssh-key", "GITHUB_ENV": str(tmp_path / "env"),
        "GITHUB_STEP_SUMMARY": str(tmp_path / "summary"), "CI_API_V4_URL": "", "CI_PROJECT_ID": "5",
    }  # fmt: skip
    done = [run(step, clone, env) for step in steps(system, "drift")]
    assert done[-1].returncode == code
    assert words in done[-1].stdout
    assert ("/etc/motd" in done[-1].stdout) is (code == 10)


# --- the files: keys that the systems know -----
# GitHub: docs.github.com, "Workflow syntax"; SchemaStore, github-workflow.json. GitLab: docs.gitlab.com, "CI/CD YAML
# syntax reference". OCI DevOps: Oracle's page "Build Specification".

GITHUB = {
    "": {"name", "on", "permissions", "env", "defaults", "jobs", "concurrency", "run-name"},
    "job": {"if", "runs-on", "permissions", "concurrency", "steps", "timeout-minutes", "needs", "env", "environment"},
    "step": {"id", "if", "name", "uses", "run", "with", "env", "shell", "working-directory", "timeout-minutes"},
    "permissions": {"contents", "id-token", "pull-requests", "actions"},
}
GITLAB_GLOBAL = {"workflow", "variables", "default", "stages", "include"}
GITLAB_JOB = {
    "extends", "stage", "rules", "script", "before_script", "artifacts", "resource_group", "interruptible", "timeout",
    "id_tokens", "image", "tags", "needs", "environment", "variables",
}  # fmt: skip
OCI = {
    "": {
        "version", "component", "timeoutInSeconds", "shell", "failImmediatelyOnError", "env", "inputArtifacts", "steps",
        "outputArtifacts",
    },
    "env": {"variables", "vaultVariables", "exportedVariables"},
    "step": {"type", "name", "shell", "timeoutInSeconds", "failImmediatelyOnError", "command", "onFailure"},
    "output": {"name", "type", "location"},
}  # fmt: skip


def test_github_knows_every_key() -> None:
    read: dict[Any, Any] = document("github.yml")
    read["on"] = read.pop(True, read.get("on"))  # YAML 1.1 reads `on` as a truth value
    assert set(read) <= GITHUB[""]
    assert set(read["on"]) == {"pull_request", "push", "schedule"}
    for job in read["jobs"].values():
        assert set(job) <= GITHUB["job"]
        assert set(job["permissions"]) <= GITHUB["permissions"]
        assert set(job.get("concurrency", ())) <= {"group", "cancel-in-progress"}
        for step in job["steps"]:
            assert set(step) <= GITHUB["step"]
            assert ("uses" in step) != ("run" in step)
    # Secrets reach a shell as variables: what is written into a script is an injection.
    scripts = "".join(step.script for job in read["jobs"] for step in steps("github", job))
    assert "${{" not in scripts
    every = "".join((FOLDER / "github.yml").read_text().split())
    for action in re.findall(r"uses:([^-]*?)(?:with|-)", every):
        assert re.fullmatch(r"actions/[a-z-]+@v\d+", action) or action.startswith("actions/")


def test_gitlab_knows_every_key() -> None:
    read = document("gitlab.yml")
    jobs: dict[str, Any] = {name: job for name, job in read.items() if name not in GITLAB_GLOBAL}
    for job in jobs.values():
        assert set(job) <= GITLAB_JOB
        assert set(job.get("artifacts", {})) <= {"paths", "when", "expire_in", "name", "reports"}
    assert {job["stage"] for job in jobs.values() if "stage" in job} == set(read["stages"])
    assert jobs[".cluster"]["id_tokens"] == {"GPUCLUSTER_ID_TOKEN": {"aud": "oci"}}


@pytest.mark.parametrize("job", ["plan", "apply", "drift"])
def test_oci_devops_knows_every_key(job: str) -> None:
    read = document(f"oci-devops-{job}.yaml")
    assert set(read) <= OCI[""]
    assert (read["version"], read["component"], read["shell"]) == (0.1, "build", "bash")
    assert set(read["env"]) <= OCI["env"]
    for step in read["steps"]:
        assert set(step) <= OCI["step"]
    for output in read.get("outputArtifacts", ()):
        assert set(output) == OCI["output"]


def test_every_file_is_tried() -> None:
    names = {"github.yml", "gitlab.yml", *(f"oci-devops-{job}.yaml" for job in ("plan", "apply", "drift"))}
    assert {file.name for file in FOLDER.iterdir()} == names
