"""HTTP for release files: bounded redirects, timeouts and retries.

It uses the standard library and not urllib3. `urllib.request` honours the proxy variables (HTTPS_PROXY, NO_PROXY) by
itself, while with urllib3 we would read them with `urllib.request` and choose a ProxyManager. The rule for redirects
would be a loop of our own there, and we need a single connection, not a pool.
"""

from __future__ import annotations

import http.client
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from email.message import Message
from typing import IO, Any
from urllib.parse import unquote, urlsplit

from gpucluster import cancellation
from gpucluster.errors import EnvironmentFault, InputError
from gpucluster.text import reason_of

#: Seconds without a byte after which a request has failed, by its method.
TIMEOUTS = {"HEAD": 10.0, "GET": 30.0}
#: Seconds between one attempt and the next. There is one attempt more than there are pauses.
PAUSES = (1.0, 3.0)
_REDIRECTS = 5
_NO_HEAD = frozenset({400, 403, 405, 501})
_NOT_THERE = frozenset({403, 404, 410})
_TEMPORARY = frozenset({408, 429, 500, 502, 503, 504})
_HINT = (
    "Run the same command again when the network works, or set `software.mirror` in cluster.yml to a folder or URL "
    "that has the files (docs/how-to/mirror.md)"
)


class Redirects(urllib.request.HTTPRedirectHandler):
    """Follows few redirects, and never one from https to http.

    Args:
        schemes: that a redirect may lead to.
    """

    max_repeats = max_redirections = _REDIRECTS

    def __init__(self, schemes: tuple[str, ...]) -> None:
        self._schemes = schemes

    def redirect_request(
        self,
        req: urllib.request.Request,
        fp: IO[bytes],
        code: int,
        msg: str,
        headers: http.client.HTTPMessage,
        newurl: str,
    ) -> urllib.request.Request | None:
        """The request to send after a redirect.

        Raises:
            EnvironmentFault: it leads to a scheme that is not allowed.
        """
        if urlsplit(newurl).scheme not in self._schemes:
            raise EnvironmentFault(
                f"a redirect leads to {urlsplit(newurl).scheme}, which is not allowed",
                where=req.full_url,
                hint="Set another `software.mirror` in cluster.yml",
            )
        redirected = super().redirect_request(req, fp, code, msg, headers, newurl)
        if redirected is not None:
            redirected.method = req.method  # the standard library turns a HEAD into a GET
        return redirected


class HttpClient:
    """Requests with retries.

    Args:
        schemes: "http" and "https", or only "https".
    """

    def __init__(self, schemes: tuple[str, ...]) -> None:
        self._opener = urllib.request.build_opener(Redirects(schemes))

    def has(self, url: str) -> bool:
        """Whether the URL exists. The body of the answer is not read."""
        for method in ("HEAD", "GET"):
            try:
                with self.opened(method, url):
                    return True
            except urllib.error.HTTPError as error:
                if method == "GET" or error.code not in _NO_HEAD:
                    return False
        return False

    @contextmanager
    def opened(self, method: str, url: str) -> Iterator[Any]:
        """The answer to a request.

        Raises:
            HTTPError: the URL does not exist.
            InputError: it is not a URL.
            EnvironmentFault: no answer or an error, also after the retries.
        """
        with self._with_retries(method, url) as answer:
            yield answer

    def _with_retries(self, method: str, url: str) -> Any:
        request = urllib.request.Request(url, method=method, headers={"User-Agent": "gpucluster"})  # noqa: S310
        for pause in (*PAUSES, None):
            try:
                return self._opener.open(request, timeout=TIMEOUTS[method])
            except urllib.error.HTTPError as error:
                error.close()
                if error.code in _NOT_THERE or (method == "HEAD" and error.code in _NO_HEAD):
                    raise
                why, temporary = f"it answered {error.code} {error.reason}", error.code in _TEMPORARY
            except (OSError, http.client.HTTPException) as error:
                why, temporary = f"no answer: {reason_of(error)}", True
            except ValueError as error:
                raise InputError(
                    f"this is not a URL: {error}", where=url, hint="Fix `software.mirror` in cluster.yml"
                ) from error
            if pause is None or not temporary:
                break
            cancellation.sleep(pause)
        raise EnvironmentFault(f"a release can't be downloaded: {why}", where=unquote(url), hint=_HINT)


def content_length(headers: Message) -> int | None:
    """The size of a body in bytes; None if the server does not state it."""
    value = headers.get("Content-Length", "")
    return int(value) if value.isdigit() else None
