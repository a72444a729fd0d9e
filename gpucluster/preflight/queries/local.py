"""Queries to this machine: the API key, the ssh key pair, the Terraform program. No network."""

from __future__ import annotations

import os
import shutil
import stat
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from gpucluster import process
from gpucluster.cloud.client import fingerprint
from gpucluster.errors import GpuClusterError
from gpucluster.preflight.facts import InstalledProgram, KeyFile, SshPair, Unknown
from gpucluster.spec import ClusterSpec
from gpucluster.terraform import backends
from gpucluster.terraform.program import PINNED_VERSION, version_of

_TIMEOUT = 10.0


def key_file(config: Mapping[str, Any]) -> KeyFile:
    """The API key that the profile names."""
    path, expected = Path(str(config["key_file"])), str(config["fingerprint"])
    try:
        mode = stat.S_IMODE(path.stat().st_mode)
        content = path.read_bytes()
    except OSError as error:
        return KeyFile(path, expected, f"it can't be read: {error.strerror}")
    try:
        return KeyFile(path, expected, mode=mode, fingerprint=fingerprint(content))
    except ValueError as error:
        return KeyFile(path, expected, str(error), mode)


def ssh_pair(spec: ClusterSpec) -> SshPair | Unknown | None:
    """The operator's key pair; None if gpucluster generates it."""
    private, public = spec.ssh.private_key_path, " ".join((spec.ssh.public_key or "").split()[:2])
    if private is None:
        return None
    try:
        mode = stat.S_IMODE(private.stat().st_mode)
    except OSError:
        return SshPair(private, public, exists=False)
    if mode & 0o077 or not os.access(private, os.R_OK):
        return SshPair(private, public, mode=mode)
    try:
        # With an empty passphrase ssh-keygen does not ask for one; for a key that has one, it fails with a message.
        result = process.run(["ssh-keygen", "-y", "-P", "", "-f", str(private)], check=False, timeout=_TIMEOUT)
    except GpuClusterError as error:
        return Unknown("ssh", f"the private key {private}", error.what, action=error.hint)
    if result.returncode == 0:
        return SshPair(private, public, mode=mode, derived=" ".join(result.stdout.split()[:2]))
    return SshPair(private, public, mode=mode, locked="passphrase" in result.stderr)


def terraform(spec: ClusterSpec) -> InstalledProgram | None:
    """Whether Terraform supports the backend of the state; None if every supported release does."""
    backend = backends.BackendConfig(spec.state.backend, {})
    if not backend.remote:
        return None
    on_path = next(filter(None, map(shutil.which, ("terraform", "tofu"))), None)
    try:
        program = Path(on_path or "terraform")
        version = version_of(program) if on_path else PINNED_VERSION
        backend.check_program(program, version)
    except GpuClusterError as error:
        return InstalledProgram(error.what, error.hint)
    return InstalledProgram()
