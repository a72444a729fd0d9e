"""The environment of the programs that we start: which of the caller's variables reach them, and why.

A variable that an operator has exported for another purpose must not break a run, redirect it to another cloud, state
or host, or come, as a secret may, to a program that has no use for it. `RULES` is the list of what passes;
docs/reference/environment.md shows it. Pure.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from fnmatch import fnmatchcase
from functools import cache


class Program(StrEnum):
    """What an environment is for."""

    TERRAFORM = "Terraform"
    ANSIBLE = "Ansible"
    SSH = "ssh"
    TERMINAL = "ssh on your terminal"
    PIP = "pip"
    TOOLS = "other programs"
    """Those of the local cloud (podman, nft, Debian's tools, its server), and small ones such as `ip`."""


_ALL = frozenset(Program)
_TERRAFORM = frozenset({Program.TERRAFORM})
_SSH = _ALL - {Program.PIP, Program.TOOLS}
_TERMINAL = frozenset({Program.TERMINAL})
_PIP = frozenset({Program.PIP})
_TOOLS = frozenset({Program.TOOLS})
_NONE: frozenset[Program] = frozenset()
_PROXIES = ("http_proxy", "https_proxy", "all_proxy", "ftp_proxy")
_LOOPBACK = ("localhost", "127.0.0.1", "::1")


@dataclass(frozen=True)
class Rule:
    """Which programs get the variables that a pattern matches.

    Args:
        patterns: of names, with spaces between them; `*` stands for any characters.
    """

    patterns: str
    reaches: frozenset[Program]
    why: str

    def matches(self, name: str) -> bool:
        """Whether it decides about a variable, unless an earlier rule does."""
        return any(fnmatchcase(name, pattern) for pattern in self.patterns.split())


#: The first rule that matches decides. A variable that no rule matches reaches no program.
RULES = (
    Rule("HOME PATH USER LOGNAME TMPDIR", _ALL, "who you are, and where programs and files are"),
    Rule("XDG_RUNTIME_DIR XDG_*_HOME XDG_*_DIRS", _ALL, "where programs have their settings, caches and sockets"),
    Rule("LANG TZ", _ALL, "language and time of texts for users"),
    Rule(
        "LC_* LANGUAGE",
        _TERMINAL,
        "elsewhere `LC_ALL=C.UTF-8` is set: Ansible needs UTF-8, and messages are read in English",
    ),
    Rule("TERM", _ALL, "what the terminal can show"),
    Rule("COLORTERM COLUMNS LINES DISPLAY WAYLAND_DISPLAY XAUTHORITY", _TERMINAL, "your terminal and screen"),
    Rule("LD_LIBRARY_PATH LD_PRELOAD", _ALL, "libraries without which programs of this machine may not start"),
    Rule(
        " ".join(each for name in (*_PROXIES, "no_proxy") for each in (name, name.upper())),
        _ALL,
        "the proxy to the cloud, to downloads and registries",
    ),
    Rule("SSL_CERT_FILE SSL_CERT_DIR", _ALL, "certificates of CAs that you trust"),
    Rule("SSH_AUTH_SOCK", _SSH, "the agent that holds your keys"),
    Rule("SSH_SK_PROVIDER", _SSH, "the library for keys on a hardware token"),
    Rule("SSH_ASKPASS*", _TERMINAL, "the program that asks you for a password; elsewhere no user is there to answer"),
    Rule("SSH_*", _NONE, "they describe the connection through which you came to this machine"),
    Rule(
        "GPUCLUSTER_ID_TOKEN GPUCLUSTER_OIDC_* ACTIONS_ID_TOKEN_*",
        _NONE,
        "what a CI job proves itself with; gpucluster alone exchanges it",
    ),
    Rule(
        "GPUCLUSTER_*", _ALL, "settings of gpucluster, and the mark by which a run finds the programs of a killed one"
    ),
    Rule("PLUGIN_UNIX_SOCKET_DIR", _TERRAFORM, "where Terraform and its provider talk to each other"),
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
    Rule(
        "OCI_TENANCY_OCID OCI_USER_OCID OCI_FINGERPRINT OCI_PRIVATE_KEY OCI_PRIVATE_KEY_PATH OCI_REGION OCI_AUTH "
        "OCI_CONFIG_FILE_PROFILE OCI_HOME_OVERRIDE OCI_WORKLOAD_IDENTITY_* OCI_TOKEN_EXCHANGE_*",
        _NONE,
        "`cloud.auth` and `cloud.profile` of cluster.yml decide who it is, and which region",
    ),
    Rule("*CLIENT_HOST_OVERRIDES *domain_name_override", _NONE, "would send the provider's requests to another host"),
    Rule("OCI_CLI_*", _NONE, "settings of the program `oci`"),
    Rule("OCI_*", _TERRAFORM, "other settings of the provider and the backend `oci`, such as a key's password"),
    Rule("custom_cert_location", _TERRAFORM, "the CA of a proxy, for Oracle's provider"),
    Rule("AWS_*", _TERRAFORM, "credentials and settings of the backend `s3`"),
    Rule("GODEBUG GOMAXPROCS GOMEMLIMIT", _TERRAFORM | _TOOLS, "how much of this machine Terraform and podman use"),
    Rule("PIP_* NETRC REQUESTS_CA_BUNDLE", _PIP, "your index of packages, and how it is reached"),
    Rule(
        "CONTAINERS_* STORAGE_* REGISTRY_AUTH_FILE DBUS_SESSION_BUS_ADDRESS",
        _TOOLS,
        "settings of podman, and the bus by which it asks systemd for a control group",
    ),
    Rule("ANSIBLE_* AWX_* RUNNER_*", _NONE, "would change users, connections and output of our playbooks"),
    Rule("PYTHON*", _NONE, "would change the modules that Ansible's and the hosts' Python load"),
    Rule("VIRTUAL_ENV CONDA_*", _NONE, "the programs run in gpucluster's own installation"),
    Rule("GIT_*", _NONE, "inside a Git hook, they name the repository of the hook"),
    Rule("BASH_ENV ENV", _NONE, "a file that shells would run first"),
    Rule("SHELL", _NONE, "`/bin/sh` is set: ssh starts the connection to a jump host with it"),
    Rule("*", _NONE, "no program needs it, and it may be a secret"),
)


def reaches(name: str, program: Program) -> bool:
    """Whether a variable of the caller is passed on to a program."""
    return program in _rule(name).reaches


@cache
def _rule(name: str) -> Rule:
    """The rule of a variable. A command starts ten programs, each with the forty variables of its caller."""
    return next(rule for rule in RULES if rule.matches(name))


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
    kept["SHELL"] = "/bin/sh"
    if program is not Program.TERMINAL:
        kept["LC_ALL"] = "C.UTF-8"
    return kept | without_proxy(caller)


def without_proxy(caller: Mapping[str, str]) -> dict[str, str]:
    """The variables that make programs reach this machine itself without the caller's proxy; none without a proxy."""
    if not any(caller.get(name) or caller.get(name.upper()) for name in _PROXIES):
        return {}
    return {name: _direct(caller, name) for name in ("no_proxy", "NO_PROXY")}


def _direct(caller: Mapping[str, str], name: str) -> str:
    """The hosts that are reached without the proxy: the caller's, and this machine itself."""
    value = caller.get(name) or caller.get(name.swapcase()) or ""
    if value.strip() == "*":
        return value
    hosts = [host.strip() for host in value.split(",") if host.strip()]
    return ",".join([*hosts, *(host for host in _LOOPBACK if host not in hosts)])


def table() -> str:
    """The rules as a table of Markdown."""
    rows = []
    for rule in RULES:
        names = "every other" if rule.patterns == "*" else ", ".join(f"`{name}`" for name in rule.patterns.split())
        who = "all" if rule.reaches == _ALL else ", ".join(sorted(rule.reaches)) or "nothing"
        rows.append(f"| {names} | {who} | {rule.why} |")
    return "\n".join(["| variable | reaches | why |", "|---|---|---|", *rows])
