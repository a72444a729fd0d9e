"""Files with certificates that a cluster.yml names."""

from __future__ import annotations

import re

from gpucluster.spec.document import Path
from gpucluster.spec.messages import shown
from gpucluster.spec.rules.context import RuleContext
from gpucluster.spec.sections import fields

_CERTIFICATE = re.compile(r"-----BEGIN CERTIFICATE-----.+?-----END CERTIFICATE-----", re.DOTALL)
_MAX_BYTES = 1024 * 1024


def read_certificates(context: RuleContext, path: Path, name: str) -> tuple[str, ...]:
    """Read the certificates (PEM) of one file into the context, or add what is wrong with it and return none."""
    try:
        with fields.located(name, context.directory).open("rb") as file:
            text = file.read(_MAX_BYTES).decode("ascii", errors="replace")
    except (OSError, RuntimeError, ValueError):
        context.error(path, f"there is no file {shown(name)}", "File names are relative to this file")
        return ()
    if "PRIVATE KEY" in text:
        context.error(path, f"{shown(name)} contains a private key", "Name a file that has certificates only")
        return ()
    certificates = tuple(_CERTIFICATE.findall(text))
    if not certificates or not all(map(_is_certificate, certificates)):
        hint = "Convert it: openssl x509 -inform der -in FILE -out FILE.pem"
        context.error(path, f"{shown(name)} is not a certificate in PEM", hint)
        return ()
    context.certificates[name] = certificates
    return certificates


def _is_certificate(text: str) -> bool:
    import ssl

    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT).load_verify_locations(cadata=text)
    except (ssl.SSLError, ValueError):
        return False
    return True
