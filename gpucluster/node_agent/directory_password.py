"""The password with which this host binds to the directory: another one from the controller.

`gpucluster-agent directory-password take` reads it from standard input, proves it with a bind of its own, and only then
gives it to SSSD. Meanwhile the directory accepts both, so it may be killed at any point and run again. SSSD reads its
configuration when it starts (sssd.conf(5)); processes of users do not notice a restart.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from gpucluster.node_agent import bounded, ldap_bind, passwords, programs
from gpucluster.node_agent.errors import AgentError, Failed, Refused, report

CONFIG = Path("/etc/sssd/sssd.conf")
UNIT = "sssd.service"
_PASSWORD_LINE = re.compile(r"^ldap_default_authtok = .*$", re.MULTILINE)
#: As `passwords.made` makes them: a character of another meaning in the file is not among them.
_PASSWORD = re.compile(r"[A-Za-z0-9_-]{32,128}")
_LONGEST = 4096
_SECONDS = 60.0


@dataclass(frozen=True)
class Binding:
    """How SSSD binds: the server, the file with its CA, and the entry."""

    uri: str
    authority: Path
    dn: str


def read(text: str) -> Binding:
    """The binding in a configuration of SSSD.

    Raises:
        Refused: it has none: this host has no directory, or is not configured yet.
    """

    def value(key: str) -> str:
        found = re.search(rf"^{key} = (.+)$", text, re.MULTILINE)
        if found is None:
            raise Refused(f"{CONFIG} has no {key}", "Run: gpucluster apply")
        return found[1].strip()

    return Binding(value("ldap_uri"), Path(value("ldap_tls_cacert")), value("ldap_default_bind_dn"))


def take(password: str, config: Path = CONFIG) -> None:
    """Let SSSD bind with another password. It may be repeated.

    Raises:
        Refused: it is not a password of the controller's, or this host does not bind.
        Failed: the directory does not accept it, and nothing was changed; or SSSD does not start.
    """
    if not _PASSWORD.fullmatch(password):
        raise Refused("the request has no password of the controller's", "Run: gpucluster rotate passwords")
    text = config.read_text(encoding="utf-8")
    binding = read(text)
    new, number = _PASSWORD_LINE.subn(f"ldap_default_authtok = {password}", text)
    if number != 1:
        raise Refused(f"{config} has no password", "Run: gpucluster apply")
    if not ldap_bind.accepted(binding.uri, binding.authority, binding.dn, password):
        raise Failed(f"the directory does not accept the next password of {binding.dn}", "Run: gpucluster apply")
    if new != text:
        passwords.write_file(config, new, like=config.stat())
    # Also after a kill between the two.
    restart("restart")


def restart(*words: str) -> None:
    """Let SSSD start again. Rotations do so several times within seconds, and systemd would refuse the sixth start.

    Args:
        words: the command of systemctl with its options.

    Raises:
        Failed: it does not start.
    """
    programs.call(["systemctl", "reset-failed", UNIT], seconds=_SECONDS)
    result = programs.call(["systemctl", *words, UNIT], seconds=_SECONDS)
    if result.returncode != 0:
        raise Failed(f"{UNIT} does not start: {result.stderr.strip()[-300:]}", f"Run: journalctl -u {UNIT}")


def main(argv: Sequence[str] | None = None) -> int:
    """Run one of the commands; returns the exit status."""
    parser = argparse.ArgumentParser(
        prog="gpucluster-agent directory-password", description=(__doc__ or "").splitlines()[0]
    )
    parts = parser.add_subparsers(dest="part", required=True)
    parts.add_parser("take", help="bind with the password on standard input: a JSON string")
    parser.parse_args(argv)
    try:
        password = bounded.loads(sys.stdin.read(_LONGEST))
        if not isinstance(password, str):
            raise Refused("the request is not a JSON string")
        take(password)
    except ValueError:
        # Not the error itself: it may quote the password.
        sys.stderr.write("gpucluster-agent directory-password: the request is not a JSON string\n")
        return Refused.status
    except (AgentError, OSError) as error:
        return report(error, "directory-password")
    return 0
