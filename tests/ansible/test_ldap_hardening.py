"""Access rules of the directory, from its configuration; tests/e2e tests the real server."""

from __future__ import annotations

import base64
import json
import re
import shlex
from typing import Any

import pytest

from tests.ansible.loading import ANSIBLE, read
from tests.ansible.render import render, variables

SYSTEMS = sorted(path.stem for path in (ANSIBLE / "vars" / "os").glob("*.yml"))
HOSTS = "ou=hosts,dc=demo,dc=local"


def slapd(system: str = "Debian-13") -> str:
    return render("ldap", "slapd.conf", variables(role="ldap", system=system))


def rules(text: str) -> list[str]:
    """The access rules, each on one line."""
    joined = re.sub(r"\n\s+", " ", text)
    return [line for line in joined.splitlines() if line.startswith("access")]


def sssd(**more: Any) -> dict[str, str]:
    """The settings of all sections; none of ours has one name in two."""
    text = render("ldap", "sssd.conf", variables(role="ldap") | {"ldap_password": "secret"} | more)
    return dict(line.split(" = ", 1) for line in text.splitlines() if " = " in line and not line.startswith("#"))


def test_the_directory_listens_with_tls_alone() -> None:
    text = render("ldap", "slapd.service", variables(role="ldap"))
    assert '-h "ldaps:/// ldapi://%%2Frun%%2Fslapd%%2Fldapi"' in text
    assert "ldap:///" not in text


@pytest.mark.parametrize("system", SYSTEMS)
def test_no_client_is_served_without_a_name(system: str) -> None:
    lines = slapd(system).splitlines()
    assert {"disallow bind_anon", "require authc", "security simple_bind=128", "TLSProtocolMin 3.3"} <= set(lines)


@pytest.mark.parametrize("system", SYSTEMS)
def test_passwords_are_hashed_strongly(system: str) -> None:
    facts = read(f"vars/os/{system}.yml")["os_ldap"]
    lines = slapd(system).splitlines()
    (scheme,) = [line.split()[1] for line in lines if line.startswith("password-hash")]
    assert scheme in ("{ARGON2}", "{CRYPT}")
    # slapd does not start with an unknown option of a module.
    loaded = [line.split()[1] for line in lines if line.startswith("moduleload")]
    assert ("argon2" in loaded) == (scheme == "{ARGON2}")
    assert [name.split()[0] for name in facts["modules"]["names"]] == loaded
    assert 'password-crypt-salt-format "$6$%.16s"' in lines


def test_passwords_are_read_by_no_client_and_everything_else_by_few() -> None:
    assert rules(slapd()) == [
        'access to filter="(shadowExpire=1)" attrs=userPassword by * none',
        f'access to dn.subtree="{HOSTS}" attrs=userPassword by anonymous auth by * none',
        "access to attrs=userPassword by self =xw by anonymous auth by * none",
        f'access to * by dn.onelevel="{HOSTS}" read by self read by * none',
    ]


def test_hosts_trust_the_cluster_s_ca_only_and_prove_who_they_are() -> None:
    found = sssd()
    assert found["ldap_uri"] == "ldaps://demo-controller"
    assert found["ldap_tls_reqcert"] == "demand"
    assert found["ldap_search_base"] == "dc=demo,dc=local"
    own = f"cn=demo-controller,{HOSTS}"
    assert (found["ldap_default_bind_dn"], found["ldap_default_authtok"]) == (own, "secret")


def test_each_host_gets_its_own_password_and_an_image_none() -> None:
    builder = "demo-builder-compute"
    passwords = {"hosts": {name: {"password": f"of {name}"} for name in ("demo-controller", "compute-1", builder)}}
    seen = {"content": base64.b64encode(json.dumps(passwords).encode()).decode()}

    def settings(host: str, **more: Any) -> tuple[str, str]:
        found = variables(role="ldap", host=host)
        known = found | {"hostvars": {"demo-controller": {"ldap_passwords_seen": seen}}, "ansible_check_mode": False}
        text = render("ldap", "sssd.conf", known | more)
        lines = dict(line.split(" = ", 1) for line in text.splitlines() if line.startswith("ldap_default"))
        return lines["ldap_default_bind_dn"].split(",")[0], lines["ldap_default_authtok"]

    for host in ("demo-controller", "compute-1"):
        assert settings(host) == (f"cn={host}", f"of {host}")
    groups = {"controller": ["demo-controller"], "builder": [builder], "compute": [], "all": []}
    bakes = {"groups": groups, "group_names": ["builder", "pool_compute"]}
    # What boots from the image writes both into these lines.
    assert settings(builder, **bakes) == ("cn=", "")
    # Without a password SSSD would bind without one, and know no user.
    with pytest.raises(Exception, match="password"):
        settings("compute-2")
    assert settings("compute-2", ansible_check_mode=True)[1] == ""


def test_what_boots_from_an_image_starts_sssd_and_then_slurmd_when_it_has_its_entry() -> None:
    def units(*, entry_at_boot: bool) -> tuple[list[str], list[str]]:
        more = {"entry_at_boot": entry_at_boot}
        asks = render("base", "gpucluster-host-certificate.service", variables(role="base") | more)
        slurmd = render("slurm", "slurmd.service", variables(role="slurm") | more)
        return asks.splitlines(), slurmd.splitlines()

    asks, slurmd = units(entry_at_boot=True)
    assert {"Type=notify", "TimeoutStartSec=infinity", "ExecStartPost=+/usr/bin/systemctl start sssd.service"} <= set(
        asks
    )
    assert "After=gpucluster-host-certificate.service" in slurmd
    # Also where that unit was killed. The pattern is the one of the file that the role writes.
    (look,) = [line for line in slurmd if line.startswith("ExecStartPre=/usr/bin/grep")]
    pattern = shlex.split(look)[2]
    empty = render("ldap", "sssd.conf", variables(role="ldap") | {"ldap_password": ""})
    assert not re.search(pattern, empty, re.MULTILINE)
    assert re.search(pattern, empty.replace("ldap_default_authtok = ", "ldap_default_authtok = x"), re.MULTILINE)
    # Other hosts get entry and password before SSSD starts, and wait for nothing.
    asks, slurmd = units(entry_at_boot=False)
    assert "Type=simple" in asks
    assert not [line for line in (*asks, *slurmd) if "start sssd" in line or "grep" in line]
    assert "After=gpucluster-host-certificate.service" not in slurmd


def test_an_account_that_expired_is_refused_whatever_it_logs_in_with() -> None:
    found = sssd()
    assert found["access_provider"] == "ldap"
    assert (found["ldap_access_order"], found["ldap_account_expire_policy"]) == ("expire", "shadow")
    # A cache must not admit a user who was just disabled.
    assert found["pam_initgroups_scheme"] == "always"
    assert int(found["pam_id_timeout"]) <= 1
    assert "UsePAM yes" in render("base", "sshd.conf", variables(role="base"))


def test_keys_come_from_the_directory_by_a_user_without_rights() -> None:
    text = render("base", "sshd.conf", variables(role="base"))
    assert "AuthorizedKeysCommand /usr/bin/sss_ssh_authorizedkeys %u" in text
    assert "AuthorizedKeysCommandUser nobody" in text
    assert "ssh" in sssd()["services"].split(", ")


def test_the_password_of_the_lookup_is_in_no_log() -> None:
    # As `content` it would stand in the journal of every host.
    (file,) = [item for item in read("roles/ldap/vars/main.yml")["ldap_sssd_files"] if "sssd.conf" in item["path"]]
    assert "content_base64" in file
    assert "content" not in file
    assert (file["new_mode"], file["widest_mode"]) == ("0600", "0640")
    slurps = [task for task in read("roles/ldap/tasks/share.yml") if "hosts_file" in str(task["ansible.builtin.slurp"])]
    assert [task["no_log"] for task in slurps] == [True]


def test_the_schema_is_the_one_that_others_know() -> None:
    text = render("ldap", "ssh_keys.schema", variables(role="ldap"))
    names = dict(re.findall(r"\( ([0-9.]+)\s+NAME '(\w+)'", text))
    assert names == {
        "1.3.6.1.4.1.24552.500.1.1.1.13": "sshPublicKey",
        "1.3.6.1.4.1.24552.500.1.1.2.0": "ldapPublicKey",
    }
