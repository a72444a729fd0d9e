"""Which control plane a host belongs to: the hash of its CA's public key, as `kubeadm join` compares it."""

from __future__ import annotations

import base64
import hashlib
import os

from gpucluster.node_agent import programs
from gpucluster.node_agent.errors import Failed

FOLDER = "/etc/kubernetes"


def of_host(folder: str = FOLDER) -> str:
    """The hash of the CA's public key (SHA-256 of its SubjectPublicKeyInfo); empty for a host of no cluster.

    Raises:
        Failed: the certificate can't be read.
    """
    certificate = f"{folder}/pki/ca.crt"
    if not os.path.exists(f"{folder}/kubelet.conf") or not os.path.exists(certificate):
        return ""
    result = programs.call(["openssl", "x509", "-pubkey", "-noout", "-in", certificate])
    lines = [line for line in result.stdout.splitlines() if line and not line.startswith("-----")]
    if result.returncode != 0 or not lines:
        hint = "Remove it, then run: gpucluster apply"
        raise Failed(f"{certificate} holds no certificate that openssl can read", hint)
    return hashlib.sha256(base64.b64decode("".join(lines))).hexdigest()
