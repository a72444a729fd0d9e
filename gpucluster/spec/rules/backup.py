"""Rules of `backup`: the certificate for which backups are encrypted, and their directory."""

from __future__ import annotations

from gpucluster.spec.document import Path
from gpucluster.spec.messages import shown
from gpucluster.spec.rules.certificate_files import read_certificates
from gpucluster.spec.rules.context import RuleContext

RULES = (
    "The other keys of `backup` have an effect only with `backup.certificate`. That needs "
    "`storage.home.enabled: true`: without a home share there is no directory to back up.",
    "`backup.certificate` is a file with one certificate in PEM, without a private key; its key is one of RSA with at "
    "least 2048 bits, or of an elliptic curve of NIST. `plan` and `apply` refuse one that has expired.",
    "`backup.directory` is not in a temporary file system, and has no `.` or `..`.",
)

_CERTIFICATE: Path = ("backup", "certificate")
_DIRECTORY: Path = ("backup", "directory")
_TEMPORARY = ("/tmp", "/var/tmp", "/run", "/var/run", "/dev", "/proc", "/sys")  # noqa: S108 - names, not used
_LEAST_BITS = 2048
_HOW = "docs/how-to/backup.md has a command that makes a key and its certificate"


def check(context: RuleContext) -> None:
    """Add every error of `backup`."""
    section = context.section("backup")
    directory, name = section.get("directory"), section.get("certificate")
    if isinstance(directory, str):
        _check_directory(context, directory)
    if not isinstance(name, str):
        return
    if context.section("storage", "home").get("enabled") is False:
        message = "backups need the home share: without it, there is no directory of users to back up"
        context.error(_CERTIFICATE, message, "Delete `backup`, or enable storage.home")
    found = read_certificates(context, _CERTIFICATE, name)
    if len(found) > 1:
        context.error(_CERTIFICATE, f"{shown(name)} has {len(found)} certificates, and must have one", _HOW)
    elif found and not _can_encrypt(found[0]):
        message = f"{shown(name)} has a key for which nothing can be encrypted: it is neither RSA of {_LEAST_BITS} bits"
        context.error(_CERTIFICATE, f"{message} or more, nor of an elliptic curve of NIST", _HOW)


def _check_directory(context: RuleContext, directory: str) -> None:
    if {".", ".."} & set(directory.split("/")):
        context.error(_DIRECTORY, f"must not contain . or ..: {shown(directory)}", "Write the whole path")
    elif any(f"{directory}/".startswith(f"{each}/") for each in _TEMPORARY):
        context.error(_DIRECTORY, f"{shown(directory)} does not last", "Name a directory on a disk or on a share")


def _can_encrypt(pem: str) -> bool:
    from cryptography import x509
    from cryptography.exceptions import UnsupportedAlgorithm
    from cryptography.hazmat.primitives.asymmetric import ec, rsa

    try:
        key = x509.load_pem_x509_certificate(pem.encode()).public_key()
    except (ValueError, UnsupportedAlgorithm):
        return False
    if isinstance(key, rsa.RSAPublicKey):
        return key.key_size >= _LEAST_BITS
    return isinstance(key, ec.EllipticCurvePublicKey) and isinstance(
        key.curve, ec.SECP256R1 | ec.SECP384R1 | ec.SECP521R1
    )
