"""Requests, replies and errors of OCI's REST API; paging, filters and sorting of lists.

Sources: Oracle's "API Errors" page for codes and statuses; the SDK and the Terraform provider for header names.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from gpucluster.localcloud.state import member_types
from gpucluster.localcloud.state.store import Json, Resource

CORE = "/20160918"
FILE_STORAGE = "/20171215"
BASTION = "/20210331"
CONTAINER_ENGINE = "/20180222"
LIMITS = "/20190729"
QUOTAS = "/20181025"
# Small on purpose: a caller that does not follow opc-next-page fails in a test here, and not on a large tenancy.
PAGE_SIZE = 100
_MAX_PAGE_SIZE = 1000
CLIENT_ERROR = 400
# No request of OCI's API is nested deeper than about ten.
_MAX_DEPTH = 32


class ApiError(Exception):
    """An error response of the API: {code, message}."""

    def __init__(self, status: int, code: str, message: str) -> None:
        super().__init__(f"{status} {code}: {message}")
        self.status = status
        self.code = code
        self.message = message


def not_found(what: str, ocid: str) -> ApiError:
    """A resource named in the path or the query is missing, or the caller may not see it: OCI does not tell which."""
    return ApiError(
        404, "NotAuthorizedOrNotFound", f"Authorization failed or requested resource not found: {what} {ocid}"
    )


def related_not_found(what: str, ocid: str) -> ApiError:
    """A resource named in the body does not exist."""
    return ApiError(
        400,
        "RelatedResourceNotAuthorizedOrNotFound",
        f"Authorization failed or related resource not found: {what} {ocid}",
    )


def invalid(message: str) -> ApiError:
    """A parameter is invalid."""
    return ApiError(400, "InvalidParameter", message)


def conflict(message: str) -> ApiError:
    """The request contradicts the current state, and waiting does not help."""
    return ApiError(409, "Conflict", message)


def incorrect_state(message: str) -> ApiError:
    """The current lifecycle state does not allow the request; a later state may."""
    return ApiError(409, "IncorrectState", message)


def read_json(text: str | bytes) -> Any:
    """The value of a JSON text that a client has sent.

    Raises:
        ValueError: it is not JSON, or nested so deeply that it is not a request, but an attempt to exhaust the stack.
    """
    too_deep = ValueError(f"it is nested deeper than {_MAX_DEPTH} levels")
    try:
        value = json.loads(text)
    except RecursionError as error:
        raise too_deep from error
    level = [value]
    for _ in range(_MAX_DEPTH + 1):
        level = [
            item
            for container in level
            if isinstance(container, dict | list)
            for item in (container.values() if isinstance(container, dict) else container)
        ]
        if not level:
            return value
    raise too_deep


@dataclass(frozen=True)
class Call:
    """One authenticated request.

    Attributes:
        path: the variable parts of the path.
        headers: names in lower case.
        stale_seconds: answer with the state of so many seconds ago (a fault).
    """

    operation: str
    path: Mapping[str, str]
    query: Mapping[str, str]
    headers: Mapping[str, str]
    raw: bytes = b""
    stale_seconds: float = 0.0

    @property
    def retry_token(self) -> str:
        """opc-retry-token, empty if none was sent."""
        return self.headers.get("opc-retry-token", "")

    @property
    def digest(self) -> str:
        """A digest of the body, to compare two requests."""
        return hashlib.sha256(self.raw).hexdigest()

    def body(self) -> Json:
        """The JSON object that was sent; {} for an empty body. Numbers and booleans may be sent as text."""
        if not self.raw.strip():
            return {}
        try:
            value = read_json(self.raw)
        except ValueError as error:
            raise ApiError(400, "CannotParseRequest", f"Incoming request is not valid JSON: {error}") from error
        if not isinstance(value, dict):
            raise ApiError(400, "CannotParseRequest", "Incoming request must be a JSON object")
        try:
            return {key: item for key, item in member_types.read(value).items() if item is not None}
        except ValueError as error:
            raise ApiError(400, "CannotParseRequest", f"Incoming request can't be parsed: {error}") from error

    def need(self, name: str) -> str:
        """The value of a required query parameter."""
        value = self.query.get(name, "")
        if not value:
            raise ApiError(400, "MissingParameter", f"Query parameter {name} is required")
        return value


@dataclass(frozen=True)
class Reply:
    """A reply. `body` None is an empty reply (204); bytes are sent as they are, everything else as JSON."""

    body: Any = None
    status: int = 200
    headers: Mapping[str, str] = field(default_factory=dict)


Handler = Callable[[Call], Reply]


@dataclass(frozen=True)
class ApiRoute:
    """One operation: `path` is a template such as /20160918/vcns/{vcnId}; `operation` the SDK's name for it.

    `details`: for an operation on an instance, the attributes that a fault can filter by.
    """

    method: str
    path: str
    operation: str
    handler: Handler
    details: Callable[[Call], Json] | None = None


def show(resource: Resource, headers: Mapping[str, str] | None = None, status: int = 200) -> Reply:
    """One resource, with its etag."""
    return Reply(resource.body, status, {"etag": resource.etag, **(headers or {})})


def check_etag(call: Call, resource: Resource) -> None:
    """Raise 412 unless the if-match header, where there is one, matches the current etag."""
    etag = call.headers.get("if-match", "")
    if etag not in ("", "*", resource.etag):
        raise ApiError(412, "NoEtagMatch", "The if-match header does not match the current etag")


def required(body: Json, *names: str) -> None:
    """Raise 400 MissingParameter unless the body has all of these members."""
    for name in names:
        if name not in body:
            raise ApiError(400, "MissingParameter", f"{name} is required")


def filtered(items: Iterable[Resource], call: Call, names: Iterable[str]) -> list[Resource]:
    """Keep the items whose members equal the query parameters of the same name (`state` filters as lifecycleState)."""
    filters = {name: call.query[name] for name in names if call.query.get(name)}
    return [item for item in items if all(str(item.body.get(name)) == value for name, value in filters.items())]


def page(
    items: Iterable[Resource],
    call: Call,
    *,
    view: Callable[[Resource], Any] = lambda resource: resource.body,
) -> Reply:
    """Sort (sortBy, sortOrder), take one page (limit, page) and name the next page in opc-next-page.

    Without parameters OCI sorts by time of creation, newest first; by name it sorts from A to Z.
    """
    by_name = call.query.get("sortBy", "TIMECREATED").upper() in ("DISPLAYNAME", "NAME")
    order = call.query.get("sortOrder", "ASC" if by_name else "DESC").upper()
    if order not in ("ASC", "DESC"):
        raise invalid(f"sortOrder {order} is neither ASC nor DESC")

    def key(resource: Resource) -> tuple[str, int]:
        name = str(resource.body.get("displayName") or resource.body.get("name") or "") if by_name else ""
        return (name, resource.seq)

    ordered = sorted(items, key=key, reverse=order == "DESC")
    after = call.query.get("page")
    if after:
        mark = _read_page_token(after)
        ordered = [item for item in ordered if (key(item) < mark if order == "DESC" else key(item) > mark)]
    limit = _limit(call)
    headers = {}
    if len(ordered) > limit:
        last = key(ordered[limit - 1])
        headers["opc-next-page"] = _page_token(last)
    return Reply([view(item) for item in ordered[:limit]], headers=headers)


def newest_page(call: Call, find: Callable[[int | None, int], list[Resource]]) -> Reply:
    """The same for rows that the store sorts (newest first) and limits itself: find(before, limit)."""
    mark, limit = call.query.get("page"), _limit(call)
    rows = find(_read_page_token(mark)[1] if mark else None, limit + 1)
    headers = {"opc-next-page": _page_token(("", rows[limit - 1].seq))} if len(rows) > limit else {}
    return Reply([row.body for row in rows[:limit]], headers=headers)


def newest_first(call: Call) -> bool:
    """Whether the request asks for the default order: by time of creation, newest first."""
    return (
        call.query.get("sortBy", "TIMECREATED").upper() == "TIMECREATED"
        and call.query.get("sortOrder", "DESC").upper() == "DESC"
    )


def _limit(call: Call) -> int:
    text = call.query.get("limit", str(PAGE_SIZE))
    if not text.isdigit() or not 1 <= int(text) <= _MAX_PAGE_SIZE:
        raise invalid(f"limit {text} is not a number from 1 to {_MAX_PAGE_SIZE}")
    return int(text)


def _page_token(last: tuple[str, int]) -> str:
    return base64.urlsafe_b64encode(json.dumps(last).encode()).decode()


def _read_page_token(text: str) -> tuple[str, int]:
    try:
        name, seq = read_json(base64.urlsafe_b64decode(text.encode()))
        return (str(name), int(seq))
    except (ValueError, TypeError, binascii.Error) as error:
        raise invalid("page is not a value of an earlier opc-next-page") from error
