"""Rules of `slurm.rest`: the release, and one's own certificate."""

from __future__ import annotations

from typing import Any

from gpucluster.slurm import releases
from gpucluster.spec.defaults import systems_of
from gpucluster.spec.document import Path
from gpucluster.spec.messages import shown
from gpucluster.spec.rules.certificate_files import read_certificates
from gpucluster.spec.rules.context import RuleContext
from gpucluster.spec.sections import fields

_REST: Path = ("slurm", "rest")
_CERTIFICATE, _KEY = "rest_certificate_file", "rest_key_file"


def check(context: RuleContext, slurm: dict[str, Any]) -> None:
    """Add every error of the REST API."""
    files = {key: slurm.get(key) for key in (_CERTIFICATE, _KEY)}
    named = [key for key, name in files.items() if isinstance(name, str)]
    if slurm.get("rest") is not True:
        for key in named:
            context.error(("slurm", key), "it is for the REST API, which is off", "Set slurm.rest to true", key=True)
        return
    if context.data.get("scheduler") != "slurm":
        context.error(_REST, "the REST API is that of Slurm", "Write `scheduler: slurm`, or delete the line")
        return
    release = _release(context, slurm)
    if release and release < releases.OLDEST_WITH_REST:
        message = f"it needs Slurm {releases.OLDEST_WITH_REST} or later, and the controller has {release}"
        context.error(_REST, message, f'Write a newer release: release: "{releases.NEWEST}"')
    if len(named) == 1:
        other = _KEY if named[0] == _CERTIFICATE else _CERTIFICATE
        context.error(("slurm", named[0]), f"it needs slurm.{other}, too", "Name both files, or none", key=True)
    elif named:
        _check_pair(context, str(files[_CERTIFICATE]), str(files[_KEY]))


def _release(context: RuleContext, slurm: dict[str, Any]) -> str:
    """The release of the controller, as far as the file decides it. All have two digits on each side of the point."""
    release = slurm.get("release")
    if release != releases.DISTRIBUTION:
        return release if isinstance(release, str) else ""
    systems = {} if context.provider is None else systems_of(context.data, context.provider)
    return releases.OF_SYSTEM.get(systems.get("controller", ""), "")


def _check_pair(context: RuleContext, certificate: str, key: str) -> None:
    """The files can be read, and the key is that of the first certificate."""
    if not read_certificates(context, ("slurm", _CERTIFICATE), certificate):
        return
    try:
        with fields.located(key, context.directory).open("rb"):
            pass
    except (OSError, RuntimeError, ValueError):
        hint = "File names are relative to this file"
        context.error(("slurm", _KEY), f"there is no file {shown(key)} that can be read", hint)
        return
    import ssl

    own, its_key = (str(fields.located(name, context.directory)) for name in (certificate, key))
    try:
        # A passphrase would be asked for on the terminal.
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(own, its_key, password=lambda: b"")
    except (ssl.SSLError, OSError, ValueError):
        message = f"{shown(key)} is not the key of {shown(certificate)}, or one of them is not in PEM"
        hint = f"Compare: openssl x509 -noout -pubkey -in {certificate}, and openssl pkey -pubout -in {key}"
        context.error(("slurm", _KEY), message, hint)
