"""The same surroundings for tests on every machine: variables, umask, time zone, language, proxies.

What a user of this machine has set for other programs must not decide a test: `LANG` (messages are compared), `TZ`,
`COLUMNS`, `ANSIBLE_*`, `GIT_*`, `KUBECONFIG`, `AWS_*` and so on are not there; a test that is about one of them sets
it. PATH has no folder of a virtual environment, activated or not: the script of a job, for one, does more where it
finds our `gpucluster-agent`. What leads to the package archives (indexes, certificates, proxies) stays, and no proxy
is asked for a server of a test. Standard library of Python 3.9 only: the agent's tests run there.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Mapping
from pathlib import Path

#: Where programs and this user's files are, how packages come here, and what this suite and its tools are told.
_KEPT = re.compile(
    r"PATH|HOME|USER|LOGNAME|SHELL|TMPDIR|TERM|CI|DEBIAN_FRONTEND|UPDATE_GOLDEN|UPDATE_BUDGET"
    r"|XDG_CACHE_HOME|XDG_RUNTIME_DIR|XDG_CONFIG_DIRS"
    r"|(PIP|UV|PYTEST|PYTHON|HYPOTHESIS|COV|GPUCLUSTER|CONTAINERS|LD)_?[A-Z0-9_]*"
    r"|SSL_CERT_(FILE|DIR)|REQUESTS_CA_BUNDLE|CURL_CA_BUNDLE|TF_CLI_CONFIG_FILE"
    r"|(?i:https?_proxy|ftp_proxy|all_proxy|no_proxy)"
)
_FIXED = {"LANG": "C.UTF-8", "TZ": "UTC"}
#: Where servers of tests listen, and the networks of clusters. Programs differ in whether they read ranges.
_OWN = "localhost,127.0.0.1,127.0.0.0/8,10.0.0.0/8,169.254.169.254"
_UMASK = 0o022


def variables(found: Mapping[str, str]) -> dict[str, str]:
    """The variables of a test, from those of this machine."""
    kept = {name: value for name, value in found.items() if _KEPT.fullmatch(name)}
    # Each program that a test starts would compile the whole tree.
    kept.pop("PYTHONDONTWRITEBYTECODE", None)
    if "PATH" in kept:
        kept["PATH"] = _without_virtual_environments(kept["PATH"])
    kept.update(_FIXED)
    if any(name.lower().endswith("_proxy") for name in kept):
        for name in ("no_proxy", "NO_PROXY"):
            kept[name] = ",".join(filter(None, (kept.get(name, ""), _OWN)))
    return kept


def _without_virtual_environments(path: str) -> str:
    """PATH as it is before `activate`. Each virtual environment has a pyvenv.cfg beside its bin (PEP 405)."""
    folders = path.split(os.pathsep)
    return os.pathsep.join(each for each in folders if not (each and Path(each).parent.joinpath("pyvenv.cfg").exists()))


def set_up() -> None:
    """Give this process, and what it starts, the same surroundings as on other machines."""
    wanted = variables(os.environ)
    for name in set(os.environ) - set(wanted):
        del os.environ[name]
    os.environ.update(wanted)
    os.umask(_UMASK)
    time.tzset()
