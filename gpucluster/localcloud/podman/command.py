"""Calls of Podman, its error texts, and a check whether it works on this host."""

from __future__ import annotations

import json
import re
import shutil
import sys

from gpucluster import process
from gpucluster.errors import CloudError, EnvironmentFault
from gpucluster.localcloud.podman.host import settings, static_problems
from gpucluster.waiting import wait_until

# The first release that knows CDI (its RELEASE_NOTES.md).
_WITH_CDI = [4, 1]
# `podman KIND exists`: there is none.
_NONE = 1
#: Seconds for which Podman is asked again that could not look, as on a busy host.
LOOK_S = 10.0
_LOOK_POLL_S = 0.5
#: On a container: the devices of this host that it has, separated by spaces.
DEVICES_LABEL = "gpucluster.devices"


def podman(*arguments: str, check: bool = True, timeout: float = 300) -> process.Completed:
    """Call Podman.

    Args:
        check: raise CloudError with Podman's error text when it fails.
        timeout: seconds.
    """
    if shutil.which("podman") is None:
        raise EnvironmentFault("the program podman was not found", hint="Install it: apt install podman")
    result = process.run(["podman", *arguments], check=False, timeout=timeout)
    if check and result.returncode != 0:
        raise CloudError(
            f"podman {_verb(arguments)} failed: {error_text(result)}",
            where=f"podman, status {result.returncode}",
            hint="; ".join(static_problems()),
        )
    return result


def exists(kind: str, name: str) -> bool:
    """Whether Podman has a container, an image or a network of this name.

    That another command about it fails does not show it: `podman KIND exists` ends with 1 where there is none, and with
    125 where Podman could not look (podman-container-exists(1)). It is asked again for some seconds then.

    Raises:
        CloudError: Podman can't look.
    """
    results: list[process.Completed] = []

    def looked() -> bool:
        results[:] = [podman(kind, "exists", name, check=False)]
        return results[0].returncode in (0, _NONE)

    if not wait_until(looked, LOOK_S, _LOOK_POLL_S):
        raise CloudError(
            f"podman does not tell whether there is the {kind} {name}: {error_text(results[0])}",
            where=f"podman, status {results[0].returncode}",
            hint="; ".join(static_problems()),
        )
    return results[0].returncode == 0


def error_text(result: process.Completed) -> str:
    """Podman's error text, without lines that are unrelated to the failure."""
    lines = [line for line in result.stderr.splitlines() if line.strip() and "failed to connect to syslog" not in line]
    return "\n".join(lines[-5:]).removeprefix("Error: ") or "no error text"


def devices_in_containers() -> list[str]:
    """The devices that containers of this host have, running or not, by their labels."""
    listed = podman("ps", "--all", "--filter", f"label={DEVICES_LABEL}", "--format", "json").stdout
    return [name for each in json.loads(listed) for name in (each["Labels"] or {}).get(DEVICES_LABEL, "").split()]


def check_devices() -> None:
    """Check that Podman can give devices of a CDI specification to a container.

    Raises:
        EnvironmentFault: it is too old.
    """
    version = podman("version", "--format", "{{.Client.Version}}").stdout.strip()
    numbers = [int(part) for part in re.findall(r"\d+", version)[:2]]
    if numbers < _WITH_CDI:
        raise EnvironmentFault(
            f"Podman {version} can't give GPUs to instances",
            hint=f"Install Podman {'.'.join(map(str, _WITH_CDI))} or later: Debian 12 has 4.3",
        )


def probe(image: str | None = None) -> list[str]:
    """What keeps this host from running instances, each with its fix; empty if nothing does.

    Args:
        image: a local image; if given, a program is started in it as a test (0.4 s).
    """
    if sys.platform != "linux":
        return [f"the local cloud needs Linux; this is {sys.platform}. Run it in a Linux virtual machine"]
    problems = static_problems()
    if not problems:
        problems = _backend_problems()
    if not problems and image is not None:
        problems = _trial_problems(image)
    return problems


def _verb(arguments: tuple[str, ...]) -> str:
    words = [word for word in arguments if not word.startswith("-")]
    return " ".join(words[:2] if words[:1] in (["network"], ["image"]) else words[:1])


def _backend_problems() -> list[str]:
    result = podman("info", "--format", "{{.Host.NetworkBackend}} {{.Store.GraphDriverName}}", check=False)
    if result.returncode != 0:
        return [f"podman does not work: {error_text(result)}. Try `podman info`"]
    backend, driver = [*result.stdout.split(), "?", "?"][:2]
    problems = []
    if backend != "netavark":
        problems.append(
            f'Podman uses {backend} for networks, not netavark: set network_backend = "netavark" below [network] '
            "in /etc/containers/containers.conf, then run `podman system reset` (it removes all containers)"
        )
    if driver == "vfs":
        problems.append(
            "Podman copies whole images for each container (storage driver vfs): put /var/lib/containers on a file "
            "system that overlay accepts (ext4, xfs)"
        )
    return problems


def _trial_problems(image: str) -> list[str]:
    chosen = settings()
    words = ["--runtime", chosen.runtime, "run", "--rm", "--network=none", "--label=gpucluster.trial=1"]
    result = podman(*words, *chosen.run_options(), image, "/bin/true", check=False)
    return [] if result.returncode == 0 else [f"a container does not start ({chosen.runtime}): {error_text(result)}"]
