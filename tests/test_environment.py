"""The environment of the programs that we start, and what Terraform makes of it."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path

import click
import pytest

from gpucluster.cli import cli
from gpucluster.cli.base import Root
from gpucluster.environment import Program, child
from gpucluster.terraform.program import environment

HOME = "/home/operator"
# name: (the caller's variables, the program, what it gets of them)
ROWS: dict[str, tuple[Mapping[str, str], Program, Mapping[str, str]]] = {
    "another state": (
        {"TF_DATA_DIR": "x", "TF_WORKSPACE": "x", "TF_CLI_ARGS_apply": "-destroy", "TF_VAR_region": "x"},
        Program.TERRAFORM,
        {},
    ),
    "the backend's password": ({"TF_HTTP_PASSWORD": "p"}, Program.TERRAFORM, {"TF_HTTP_PASSWORD": "p"}),
    "not for Ansible": ({"TF_HTTP_PASSWORD": "p", "AWS_SECRET_ACCESS_KEY": "s"}, Program.ANSIBLE, {}),
    "a mirror of providers": (
        {"TF_CLI_CONFIG_FILE": "/rc", "TF_PLUGIN_CACHE_DIR": "/c", "TF_TOKEN_registry_example_org": "t"},
        Program.TERRAFORM,
        {"TF_CLI_CONFIG_FILE": "/rc", "TF_PLUGIN_CACHE_DIR": "/c", "TF_TOKEN_registry_example_org": "t"},
    ),
    "a log among the errors": ({"TF_LOG": "trace", "TF_LOG_PROVIDER": "trace"}, Program.TERRAFORM, {}),
    "a log in a file": (
        {"TF_LOG": "trace", "TF_LOG_PATH": "/log"},
        Program.TERRAFORM,
        {"TF_LOG": "trace", "TF_LOG_PATH": "/log"},
    ),
    "another user of the cloud": (
        {"OCI_AUTH": "InstancePrincipal", "OCI_PRIVATE_KEY": "k", "OCI_REGION": "r", "OCI_CONFIG_FILE_PROFILE": "p"},
        Program.TERRAFORM,
        {},
    ),
    "another host": (
        {"CLIENT_HOST_OVERRIDES": "x", "OCI_CLIENT_HOST_OVERRIDES": "x", "OCI_domain_name_override": "x"},
        Program.TERRAFORM,
        {},
    ),
    "a key's password": (
        {"OCI_PRIVATE_KEY_PASSWORD": "p", "OCI_private_key_password": "p"},
        Program.TERRAFORM,
        {"OCI_PRIVATE_KEY_PASSWORD": "p", "OCI_private_key_password": "p"},
    ),
    "Ansible": ({"ANSIBLE_REMOTE_USER": "x", "ANSIBLE_BECOME_ASK_PASS": "1"}, Program.ANSIBLE, {}),
    "Python": ({"PYTHONPATH": "x", "PYTHONHOME": "x", "PYTHONSTARTUP": "x", "VIRTUAL_ENV": "x"}, Program.ANSIBLE, {}),
    "ssh": ({"SSH_AUTH_SOCK": "a", "SSH_ASKPASS_REQUIRE": "force"}, Program.SSH, {"SSH_AUTH_SOCK": "a"}),
    "a hook of Git": ({"GIT_DIR": "x"}, Program.TERRAFORM, {}),
    "certificates": ({"SSL_CERT_FILE": "x"}, Program.TERRAFORM, {"SSL_CERT_FILE": "x"}),
    "a proxy": (
        {"https_proxy": "http://p"},
        Program.TERRAFORM,
        {"https_proxy": "http://p", **dict.fromkeys(("no_proxy", "NO_PROXY"), "localhost,127.0.0.1,::1")},
    ),
    "a proxy, and hosts without it": (
        {"HTTP_PROXY": "http://p", "NO_PROXY": "intra, 127.0.0.1"},
        Program.ANSIBLE,
        {"HTTP_PROXY": "http://p", **dict.fromkeys(("no_proxy", "NO_PROXY"), "intra,127.0.0.1,localhost,::1")},
    ),
    "another tool's token": (
        {"GITHUB_TOKEN": "x", "SSH_CONNECTION": "x", "XDG_SESSION_ID": "7", "my_proxy": "x"},
        Program.TERRAFORM,
        {},
    ),
    "podman": (
        {"CONTAINERS_CONF": "/c", "CONTAINER_HOST": "ssh://other", "DOCKER_HOST": "x", "LD_PRELOAD": "/l"},
        Program.TOOLS,
        {"CONTAINERS_CONF": "/c", "LD_PRELOAD": "/l"},
    ),
    "pip": ({"PIP_INDEX_URL": "u", "AWS_SECRET_ACCESS_KEY": "s"}, Program.PIP, {"PIP_INDEX_URL": "u"}),
    "no index of packages for others": ({"PIP_INDEX_URL": "https://user:secret@index"}, Program.ANSIBLE, {}),
    "no agent for the local cloud": ({"SSH_AUTH_SOCK": "a"}, Program.TOOLS, {}),
    "no host with the proxy": (
        {"all_proxy": "socks5://p", "no_proxy": "*"},
        Program.SSH,
        {"all_proxy": "socks5://p", "no_proxy": "*", "NO_PROXY": "*"},
    ),
}


@pytest.mark.parametrize("row", ROWS)
def test_what_a_program_gets(row: str) -> None:
    caller, program, expected = ROWS[row]
    always = {"HOME": HOME, "LC_ALL": "C.UTF-8", "SHELL": "/bin/sh"}
    assert child(caller, program, home=HOME) == {**always, **expected}


def test_home_and_language_of_the_caller() -> None:
    kept = child({"HOME": "/root", "LANG": "C", "LC_ALL": "C", "LC_CTYPE": "x", "SHELL": "fish"}, Program.SSH, home="/")
    assert kept == {"HOME": "/root", "LANG": "C", "LC_ALL": "C.UTF-8", "SHELL": "/bin/sh"}


def test_a_terminal_keeps_its_language() -> None:
    caller = {"HOME": "/root", "LC_CTYPE": "de_DE.UTF-8", "TERM": "xterm", "SSH_ASKPASS": "/a", "GITHUB_TOKEN": "x"}
    kept = child(caller, Program.TERMINAL, home="/")
    assert kept == {**{name: value for name, value in caller.items() if name != "GITHUB_TOKEN"}, "SHELL": "/bin/sh"}


@pytest.mark.parametrize("program", list(Program))
def test_an_unknown_variable_reaches_nothing(program: Program) -> None:
    names = [
        f"{word}{suffix}" for word in ("GITHUB", "HF", "VAULT", "WANDB", "x") for suffix in ("_TOKEN", "_PROXY", "")
    ]
    assert child(dict.fromkeys(names, "secret"), program, home=HOME).keys() <= {"HOME", "SHELL", "LC_ALL"}


def test_the_page_names_every_variable_of_an_option() -> None:
    page = (Path(__file__).parents[1] / "docs" / "reference" / "environment.md").read_text()
    options = [param for command in _commands(cli) for param in command.params]
    names = {str(name) for option in options for name in [option.envvar] if name}
    assert names
    assert names <= set(re.findall(r"`(GPUCLUSTER_\w+)`", page))


def _commands(command: click.Command) -> list[click.Command]:
    groups = command.commands.values() if isinstance(command, click.Group) else ()
    inner = command.all_commands().values() if isinstance(command, Root) else groups
    return [command, *(each for one in inner for each in _commands(one))]


def test_terraform_is_not_redirected(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The real program: with the caller's own variables it would print something else, or fail."""
    program = shutil.which("terraform")
    if program is None:
        pytest.skip("terraform is not installed")
    (tmp_path / "main.tf").write_text('variable "word" { default = "ours" }\noutput "word" { value = var.word }\n')
    for name, value in {
        "TF_CLI_ARGS": "-no-such-option",
        "TF_VAR_word": "theirs",
        "TF_WORKSPACE": "theirs",
        "TF_DATA_DIR": "/proc/none",
        "TF_LOG": "trace",
        "TF_CLI_CONFIG_FILE": str(tmp_path / "none"),
        "LC_ALL": "C",
        "HOME": "",
    }.items():
        monkeypatch.setenv(name, value)
    ours = environment()
    for words in (["init"], ["apply", "-auto-approve"], ["output", "-json"]):
        done = subprocess.run([program, *words], cwd=tmp_path, env=ours, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
        assert done.stderr == ""
    assert json.loads(done.stdout)["word"]["value"] == "ours"
