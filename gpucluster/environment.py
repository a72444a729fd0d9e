"""The environment of Terraform, Ansible and ssh: which of the caller's variables reach them, and why.

A variable that an operator has exported for another purpose must not break a run or redirect it to another cloud, state
or host. `RULES` decides about each variable; docs/reference/environment.md shows them. Pure.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from fnmatch import fnmatchcase


class Program(StrEnum):
    """What an environment is for."""

    TERRAFORM = "Terraform"
    ANSIBLE = "Ansible"
    SSH = "ssh"


_ALL = frozenset(Program)
_TERRAFORM = frozenset({Program.TERRAFORM})
_NONE: frozenset[Program] = frozenset()


@dataclass(frozen=True)
class Rule:
    """Which programs get the variables that a pattern matches.

    Args:
        pattern: of names; `*` stands for any characters.
    """

    pattern: str
    reaches: frozenset[Program]
    why: str


#: The first rule that matches decides. A variable that no rule matches reaches every program.
RULES = (
    Rule("TF_HTTP_*", _TERRAFORM, "settings of the backend `http`, among them its password"),
    Rule("TF_TOKEN_*", _TERRAFORM, "credentials of a private registry of providers"),
    Rule("TF_ENCRYPTION", _TERRAFORM, "OpenTofu's encryption of the state"),
    Rule(
        "TF_CLI_CONFIG_FILE",
        _TERRAFORM,
        "where Terraform finds the real provider, such as a mirror; not used with the local cloud's own provider",
    ),
    Rule("TF_PLUGIN_CACHE_*", _TERRAFORM, "a folder of downloaded providers"),
    Rule("TF_REGISTRY_*", _TERRAFORM, "patience with a slow registry"),
    Rule("TF_LOG*", _TERRAFORM, "Terraform's own log; only with `TF_LOG_PATH`, the file that it goes into"),
    Rule("TF_*", _NONE, "would change arguments, variables, the state or the working folder of our Terraform"),
    *(
        Rule(f"OCI_{name}", _NONE, "the profile that cluster.yml names decides which user and region it is")
        for name in (
            "TENANCY_OCID",
            "USER_OCID",
            "FINGERPRINT",
            "PRIVATE_KEY",
            "PRIVATE_KEY_PATH",
            "REGION",
            "AUTH",
            "CONFIG_FILE_PROFILE",
        )
    ),
    Rule("*CLIENT_HOST_OVERRIDES", _NONE, "would send the provider's requests to another host"),
    Rule("*domain_name_override", _NONE, "would send the provider's requests to another host"),
    Rule("OCI_*", _TERRAFORM, "other settings of the provider and the backend `oci`, such as a key's password"),
    Rule("AWS_*", _TERRAFORM, "credentials and settings of the backend `s3`"),
    Rule("ANSIBLE_*", _NONE, "would change users, connections and output of our playbooks"),
    Rule("AWX_*", _NONE, "settings of ansible-runner, as `ANSIBLE_*`"),
    Rule("RUNNER_*", _NONE, "settings of ansible-runner, as `ANSIBLE_*`"),
    Rule("AD_HOC_COMMAND_ID", _NONE, "ansible-runner would take the playbook for a single command"),
    Rule("ORIGINAL_STDOUT_CALLBACK", _NONE, "a setting of ansible-runner, as `ANSIBLE_*`"),
    Rule("PYTHON*", _NONE, "would change the modules that Ansible's and the hosts' Python load"),
    Rule("VIRTUAL_ENV", _NONE, "the programs run in gpucluster's own installation"),
    Rule("CONDA_*", _NONE, "the programs run in gpucluster's own installation"),
    Rule("LC_*", _NONE, "`LC_ALL=C.UTF-8` is set: Ansible needs UTF-8, and messages are read in English"),
    Rule("LANGUAGE", _NONE, "as `LC_*`"),
    Rule("SSH_AUTH_SOCK", _ALL, "the agent that holds your keys"),
    Rule("SSH_SK_PROVIDER", _ALL, "the library for keys on a hardware token"),
    Rule("SSH_*", _NONE, "nobody is there to answer a question for a password"),
    Rule("GIT_*", _NONE, "inside a Git hook, they name the repository of the hook"),
    Rule("BASH_ENV", _NONE, "a file that shells would run first"),
    Rule("ENV", _NONE, "a file that shells would run first"),
    Rule("SHELL", _NONE, "`/bin/sh` is set: ssh starts the connection to a jump host with it"),
)
_PROXIES = ("http_proxy", "https_proxy", "all_proxy", "ftp_proxy")
_LOOPBACK = ("localhost", "127.0.0.1", "::1")


def reaches(name: str, program: Program) -> bool:
    """Whether a variable of the caller is passed on to a program."""
    rule = next((rule for rule in RULES if fnmatchcase(name, rule.pattern)), None)
    return rule is None or program in rule.reaches


def child(caller: Mapping[str, str], program: Program, *, home: str) -> dict[str, str]:
    """The environment of a program that we start, without what we add for one cluster.

    Args:
        caller: our own environment.
        home: the user's home, for a caller that does not have HOME.
    """
    kept = {name: value for name, value in caller.items() if reaches(name, program)}
    if "TF_LOG_PATH" not in kept:
        # Terraform would write its log, which may hold secrets, among its errors.
        kept = {name: value for name, value in kept.items() if not name.startswith("TF_LOG")}
    if not kept.get("HOME", "").startswith("/"):
        kept["HOME"] = home
    kept |= {"LC_ALL": "C.UTF-8", "SHELL": "/bin/sh"}
    return kept | without_proxy(caller)


def without_proxy(caller: Mapping[str, str]) -> dict[str, str]:
    """The variables that make programs reach this machine itself without the caller's proxy; none without a proxy."""
    if not any(caller.get(name) or caller.get(name.upper()) for name in _PROXIES):
        return {}
    return {name: _direct(caller, name) for name in ("no_proxy", "NO_PROXY")}


def _direct(caller: Mapping[str, str], name: str) -> str:
    """The hosts that are reached without the proxy: the caller's, and this machine itself."""
    given = caller.get(name) or caller.get(name.swapcase()) or ""
    if given.strip() == "*":
        return given
    hosts = [host.strip() for host in given.split(",") if host.strip()]
    return ",".join([*hosts, *(host for host in _LOOPBACK if host not in hosts)])


def table() -> str:
    """The rules as a table of Markdown."""
    rows = [f"| `{rule.pattern}` | {', '.join(sorted(rule.reaches)) or 'nothing'} | {rule.why} |" for rule in RULES]
    return "\n".join(["| variable | reaches | why |", "|---|---|---|", *rows])
