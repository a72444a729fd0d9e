"""The same surroundings for tests on every machine: variables, umask, time zone, language, proxies.

What a user of this machine has set for other programs must not decide a test: `LANG` (messages are compared), `TZ`,
`COLUMNS`, `ANSIBLE_*`, `GIT_*`, `KUBECONFIG`, `AWS_*` and so on are not there; a test that is about one of them sets
it. What leads to the package archives (indexes, certificates, proxies) stays, and no proxy is asked for a server of a
test. Standard library of Python 3.9 only: the agent's tests run there.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Mapping

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
    kept.update(_FIXED)
    if any(name.lower().endswith("_proxy") for name in kept):
        for name in ("no_proxy", "NO_PROXY"):
            kept[name] = ",".join(filter(None, (kept.get(name, ""), _OWN)))
    return kept


def set_up() -> None:
    """Give this process, and what it starts, the same surroundings as on other machines."""
    wanted = variables(os.environ)
    for name in set(os.environ) - set(wanted):
        del os.environ[name]
    os.environ.update(wanted)
    os.umask(_UMASK)
    time.tzset()
