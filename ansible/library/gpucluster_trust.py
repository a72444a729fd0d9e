#!/usr/bin/python
"""CAs of the site in the host's trust store.

Instead of plain tasks: `copy` for each CA, and a handler that updates the store, which an interrupted run loses; a CA
that is listed no more would stay.
"""

from __future__ import annotations

import hashlib
import re
import ssl
from pathlib import Path
from typing import NamedTuple

from ansible.module_utils.basic import AnsibleModule

DOCUMENTATION = """
module: gpucluster_trust
short_description: CAs of the site in the host's trust store
description:
  - Adds certificates to the trust store of the system, which curl, dnf, apt, Enroot, Docker and Python's C(ssl) read,
    and removes those that an earlier run has added and that are not listed any more.
  - A run that was killed between the files and the update of the store is detected by the store's content.
options:
  certificates: {description: "Certificates in PEM, one each.", type: list, elements: str, required: true}
  record:
    description: A file with the fingerprints. It changes with the store, so daemons that read the store once follow it.
    type: path
    required: true
author: gpucluster
"""

EXAMPLES = """
- name: Trust the CAs of the site
  gpucluster_trust:
    certificates: ["-----BEGIN CERTIFICATE-----..."]
    record: /etc/gpucluster/trusted-certificates
"""

RETURN = """
trusted: {description: "Fingerprints (SHA-256) of the certificates.", returned: always, type: list}
"""

PREFIX = "gpucluster-"
PEM = re.compile(r"-----BEGIN CERTIFICATE-----(.+?)-----END CERTIFICATE-----", re.DOTALL)


class Store(NamedTuple):
    """The trust store of one family of systems."""

    #: Where an administrator puts certificates, and the names that they must end with.
    anchors: Path
    suffix: str
    #: What programs read.
    bundle: Path
    #: What makes the bundle.
    update: tuple[str, ...]


DEBIAN = Store(
    Path("/usr/local/share/ca-certificates"),
    ".crt",
    Path("/etc/ssl/certs/ca-certificates.crt"),
    ("update-ca-certificates", "--fresh"),
)
RED_HAT = Store(
    Path("/etc/pki/ca-trust/source/anchors"),
    ".pem",
    Path("/etc/pki/ca-trust/extracted/pem/tls-ca-bundle.pem"),
    ("update-ca-trust", "extract"),
)


def bodies(text: str) -> set[str]:
    """The certificates of a text, in a form that does not depend on line breaks."""
    return {"".join(body.split()) for body in PEM.findall(text)}


def read(file: Path) -> str:
    """The text of a file, empty if it does not exist."""
    return file.read_text(encoding="utf-8", errors="replace") if file.is_file() else ""


def fingerprint(certificate: str) -> str:
    """The SHA-256 of a certificate."""
    return hashlib.sha256(ssl.PEM_cert_to_DER_cert(certificate.strip())).hexdigest()


def change(store: Store, wanted: dict[str, str], *, check: bool) -> bool:
    """Write and remove our files. Returns whether one differed."""
    names = {f"{PREFIX}{name[:16]}{store.suffix}": text.strip() + "\n" for name, text in wanted.items()}
    surplus = [file for file in store.anchors.glob(f"{PREFIX}*{store.suffix}") if file.name not in names]
    differing = {name: text for name, text in names.items() if read(store.anchors / name) != text}
    if not check:
        for file in surplus:
            file.unlink()
        for name, text in differing.items():
            store.anchors.mkdir(parents=True, exist_ok=True)
            (store.anchors / name).write_text(text, encoding="utf-8")
    return bool(surplus or differing)


def stale(store: Store, wanted: dict[str, str], known: str) -> bool:
    """Whether the bundle lacks a certificate, or still has one that an earlier run has added.

    Args:
        known: the record of the earlier run.
    """
    present = bodies(read(store.bundle))
    if not set().union(*map(bodies, wanted.values())) <= present:
        return True
    return bool(set(known.split()) - set(wanted))


def main() -> None:
    """Entry point."""
    module = AnsibleModule(
        argument_spec={
            "certificates": {"type": "list", "elements": "str", "required": True},
            "record": {"type": "path", "required": True},
        },
        supports_check_mode=True,
    )
    store = RED_HAT if RED_HAT.anchors.is_dir() else DEBIAN
    record = Path(module.params["record"])
    wanted = {fingerprint(text): text for text in module.params["certificates"]}
    known = read(record)
    changed = change(store, wanted, check=module.check_mode)
    if (changed or stale(store, wanted, known)) and not module.check_mode:
        # Without the program, the package that brings it updates the store when it is installed.
        if module.get_bin_path(store.update[0]):
            module.run_command(list(store.update), check_rc=True)
            if stale(store, wanted, ""):
                module.fail_json(
                    msg=f"{store.update[0]} ran, and {store.bundle} lacks a certificate of software.trusted_ca_files. "
                    f"Run it on the host and read its output"
                )
        changed = True
    text = "".join(f"{name}\n" for name in sorted(wanted))
    if known != text and not module.check_mode:
        # The last file: an interrupted run starts again.
        record.parent.mkdir(parents=True, exist_ok=True)
        record.write_text(text, encoding="utf-8")
    module.exit_json(changed=changed or known != text, trusted=sorted(wanted))


if __name__ == "__main__":
    main()
