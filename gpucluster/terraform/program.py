"""The terraform (or tofu) program: found on PATH or downloaded, and its version checked."""

from __future__ import annotations

import hashlib
import json
import os
import platform
import shutil
import tempfile
import urllib.error
import urllib.request
import zipfile
from pathlib import Path

from gpucluster import process
from gpucluster.environment import Program
from gpucluster.errors import EnvironmentFault
from gpucluster.text import reason_of

MINIMUM_VERSION = (1, 5)
# The release that is downloaded if there is none on PATH, and the SHA-256 of the program inside its archive.
PINNED_VERSION = "1.11.4"
PINNED_PROGRAM_SHA256 = {
    ("Linux", "x86_64"): "268000fca5c61021c6396893d9483007ba589ad9d0aaccbd7dfa8c78bf7dbe23",
}
DOWNLOAD_TIMEOUT = 60.0
#: Seconds for a command of Terraform that asks no service: on a busy machine a program may stand still for a minute.
START_TIMEOUT = 120.0


def find_program(cache: Path) -> Path:
    """The terraform (or tofu) to use: from PATH, else the pinned release, downloaded once and checked.

    Args:
        cache: the folder for the download.

    Raises:
        EnvironmentFault: the one on PATH is too old, or the download failed or has not the pinned checksum.
    """
    for name in ("terraform", "tofu"):
        path = shutil.which(name)
        if path:
            _check_version(Path(path))
            return Path(path)
    return _pinned_program(cache)


def version_of(program: Path) -> str:
    """The version that the program reports, such as "1.11.4".

    Raises:
        EnvironmentFault: it reports none.
    """
    printed = process.run([str(program), "version", "-json"], env=environment(), timeout=START_TIMEOUT).stdout
    try:
        version = str(json.loads(printed)["terraform_version"])
        _numbers(version)
    except (ValueError, KeyError, TypeError) as error:
        raise EnvironmentFault(
            "terraform did not report its version",
            where=str(program),
            hint=f"Run it by hand: {program} version -json",
        ) from error
    return version


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.split("-")[0].split(".")[:2])


def _check_version(program: Path) -> None:
    version = version_of(program)
    if _numbers(version) < MINIMUM_VERSION:
        minimum = ".".join(map(str, MINIMUM_VERSION))
        raise EnvironmentFault(
            f"terraform {version} is too old",
            where=str(program),
            hint=f"Install terraform or tofu {minimum} or newer and put it first on PATH",
        )


def _pinned_program(cache: Path) -> Path:
    manual = f"Install terraform {PINNED_VERSION} (or tofu) and put it on PATH"
    machine = (platform.system(), platform.machine())
    checksum = PINNED_PROGRAM_SHA256.get(machine)
    if checksum is None:
        raise EnvironmentFault(
            f"terraform is not on PATH, and no release is pinned for {' '.join(machine)}", hint=manual
        )
    target = cache / f"terraform-{PINNED_VERSION}"
    if target.is_file() and _sha256(target) == checksum:
        return target
    archive = f"terraform_{PINNED_VERSION}_linux_amd64.zip"
    url = f"https://releases.hashicorp.com/terraform/{PINNED_VERSION}/{archive}"
    cache.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=cache) as scratch:
        try:
            with urllib.request.urlopen(url, timeout=DOWNLOAD_TIMEOUT) as answer:
                (Path(scratch) / archive).write_bytes(answer.read())
            with zipfile.ZipFile(Path(scratch) / archive) as opened:
                program = Path(opened.extract("terraform", scratch))
        except (OSError, urllib.error.URLError, zipfile.BadZipFile, KeyError) as error:
            raise EnvironmentFault(
                f"terraform is not on PATH and could not be downloaded: {reason_of(error)}", where=url, hint=manual
            ) from error
        if _sha256(program) != checksum:
            raise EnvironmentFault(
                "the downloaded terraform is not the pinned one: its SHA-256 differs", where=url, hint=manual
            )
        program.chmod(0o755)
        os.replace(program, target)
    return target


def _sha256(path: Path) -> str:
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def environment() -> dict[str, str]:
    """Our environment for Terraform; see `gpucluster.environment`.

    A TF_CLI_CONFIG_FILE that names no file is left out, because Terraform would warn of it at each command.
    """
    ours = process.environment_for(Program.TERRAFORM)
    config = ours.get("TF_CLI_CONFIG_FILE")
    if config is not None and not Path(config).exists():
        del ours["TF_CLI_CONFIG_FILE"]
    return ours
