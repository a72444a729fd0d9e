"""The ID token that a CI system gives to a job: from a variable, a file, or GitHub's service.

GitLab puts it into a variable whose name the pipeline chooses (`id_tokens`). GitHub gives a job with the permission
`id-token: write` the address of a service, and a token for it; the audience is a parameter of the request.
"""

from __future__ import annotations

import json
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Mapping
from pathlib import Path

from gpucluster.cloud.credentials import jwt
from gpucluster.errors import EnvironmentFault
from gpucluster.text import reason_of

TOKEN, TOKEN_FILE = "GPUCLUSTER_ID_TOKEN", "GPUCLUSTER_ID_TOKEN_FILE"
GITHUB_URL, GITHUB_TOKEN = "ACTIONS_ID_TOKEN_REQUEST_URL", "ACTIONS_ID_TOKEN_REQUEST_TOKEN"
_TIMEOUT = 20.0
_GITHUB_HINT = "Give the job the permission `id-token: write` and run it again"


def read(environ: Mapping[str, str], audience: str) -> str:
    """The ID token, such as it is now: a service and a file may have a newer one the next time.

    Args:
        audience: whom GitHub shall make it for; empty: GitHub's default, the URL of the repository's owner.

    Raises:
        EnvironmentFault: there is none, or it has expired.
    """
    token = _found(environ, audience).strip()
    claims = jwt.claims(token)
    if not claims:
        raise EnvironmentFault("the ID token of the CI system is not a JSON Web Token", hint=_where(environ))
    lasts = jwt.times(claims)
    if lasts is not None and lasts[1] <= time.time():
        raise EnvironmentFault(
            f"the ID token of the CI system expired {time.time() - lasts[1]:.0f} s ago",
            hint="Run the job again. GitLab makes one that lasts as long as the job may: set `timeout` of the job",
        )
    return token


def _found(environ: Mapping[str, str], audience: str) -> str:
    if token := environ.get(TOKEN):
        return token
    if file := environ.get(TOKEN_FILE):
        try:
            return Path(file).read_text(encoding="ascii")
        except (OSError, UnicodeDecodeError) as error:
            raise EnvironmentFault(
                f"the file of the ID token can't be read: {error}",
                where=file,
                hint=f"Set {TOKEN_FILE} to the file that the CI system writes",
            ) from error
    if (url := environ.get(GITHUB_URL)) and (bearer := environ.get(GITHUB_TOKEN)):
        return _of_github(url, bearer, audience)
    raise EnvironmentFault("there is no ID token of a CI system", hint=_where(environ))


def _where(environ: Mapping[str, str]) -> str:
    if environ.get("GITHUB_ACTIONS"):
        return _GITHUB_HINT
    return (
        f"GitLab: name it {TOKEN} below `id_tokens` of the job. GitHub: `permissions: {{id-token: write}}`. "
        f"Others: set {TOKEN_FILE} to a file that has it"
    )


def _of_github(url: str, bearer: str, audience: str) -> str:
    if audience:
        url = f"{url}{'&' if '?' in url else '?'}{urllib.parse.urlencode({'audience': audience})}"
    # The scheme is GitHub's: the variable is set by its runner.
    request = urllib.request.Request(url, headers={"Authorization": f"bearer {bearer}"})  # noqa: S310
    where = urllib.parse.urlsplit(url)._replace(query="").geturl()
    try:
        with urllib.request.urlopen(request, timeout=_TIMEOUT) as answer:  # noqa: S310 - the same
            return str(json.loads(answer.read())["value"])
    except urllib.error.HTTPError as error:
        error.close()
        raise EnvironmentFault(
            f"GitHub gives no ID token: it answered {error.code}", where=where, hint=_GITHUB_HINT
        ) from error
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise EnvironmentFault(
            f"GitHub gives no ID token: {reason_of(error)}", where=where, hint="Run the job again"
        ) from error
