"""The file of the directory's settings."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from gpucluster.controller.kubernetes.person_objects import Quota
from gpucluster.controller.users.config import HOSTS_FILE, Accounting, Config, HostLogins
from gpucluster.node_agent.errors import Failed
from tests.controller.users.harness import CONFIG, SUFFIX


def _config(**more: Any) -> Config:
    return Config.parse({**CONFIG, **more})


def test_a_configuration_of_an_earlier_version_has_no_kubernetes() -> None:
    assert _config().kubernetes is None
    quota = {"gpus": 8, "cpus": None, "memory_gb": None, "pods": 20}
    assert _config(kubernetes=quota).kubernetes == Quota(gpus=8, pods=20)


def test_the_settings_of_the_role_are_read() -> None:
    config = _config(slurm={"cluster": "demo", "account": "users"}, hosts={"login_user_by_host": {"ctl": "opc"}})
    assert (config.name, config.people_dn) == ("demo", f"ou=people,{SUFFIX}")
    assert (config.groups_dn, config.hosts_dn) == (f"ou=groups,{SUFFIX}", f"ou=hosts,{SUFFIX}")
    assert config.slurm == Accounting("demo", "users")
    assert config.hosts == HostLogins({"ctl": "opc"}, None)
    assert config.password_scheme == "ARGON2"


def test_what_an_earlier_version_did_not_write_has_a_default() -> None:
    raw = {key: value for key, value in CONFIG.items() if key not in ("hosts", "hosts_file", "password_scheme")}
    config = Config.parse(raw)
    assert (config.hosts, config.hosts_file, config.password_scheme) == (HostLogins(), HOSTS_FILE, "")
    assert (config.slurm, config.kubernetes_engine, config.kubeconfig_hours) == (None, False, 0)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (json.dumps({key: value for key, value in CONFIG.items() if key != "gid"}), "has no gid"),
        (json.dumps({**CONFIG, "gid": "many"}), "can't be used"),
        (json.dumps({**CONFIG, "hosts": ["ctl"]}), "can't be used"),
        (json.dumps({**CONFIG, "kubernetes": {"dogs": 7}}), "can't be used"),
        ("[]", "can't be used"),
        ("{", "can't be used"),
        (None, "No such file"),
    ],
)
def test_a_file_that_the_role_did_not_write_is_refused(text: str | None, message: str, tmp_path: Path) -> None:
    file = tmp_path / "directory.json"
    if text is not None:
        file.write_text(text)
    with pytest.raises(Failed, match=f"directory.json .*{message}") as raised:
        Config.load(file)
    assert "gpucluster apply" in raised.value.hint
