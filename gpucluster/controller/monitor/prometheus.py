"""Questions to the Prometheus of this host.

Prometheus listens on the loopback device only. Its answers are limited in time and size: the caller must get an
answer also while Prometheus reads its log again, or is asked for a million series.
"""

from __future__ import annotations

import http.client
import json
import math
import socket
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlencode

from gpucluster.node_agent.errors import AgentError, Failed, Refused

HOST, PORT = "127.0.0.1", 9090
#: Queries of one request, and letters of one of them.
MOST_QUERIES, LONGEST_QUERY = 500, 20_000
#: Seconds for one query, and for all of a request.
QUERY_SECONDS, ALL_SECONDS = 20.0, 90.0
#: Bytes of one answer.
MOST_BYTES = 64 * 1024 * 1024
_TOGETHER = 4


class NoPrometheusAnswer(Failed):
    """Prometheus does not answer, or not in time."""


@dataclass(frozen=True)
class Query:
    """One query: at one time, or over a range.

    Args:
        time: seconds of the epoch; None means now, or that it is a range.
        start, end, step: seconds; None where it is not a range.
    """

    name: str
    expr: str
    time: float | None = None
    start: float | None = None
    end: float | None = None
    step: float | None = None

    @classmethod
    def parse(cls, raw: Any) -> Query:
        """One entry of a request.

        Raises:
            Refused: it is something else.
        """
        if not isinstance(raw, dict):
            raise Refused("a query is an object with name and expr")
        name, expr = raw.get("name"), raw.get("expr")
        if not isinstance(name, str) or not name or not isinstance(expr, str) or not expr.strip():
            raise Refused("a query has a name and an expr, which are text")
        if len(expr) > LONGEST_QUERY:
            raise Refused(f"the query {name[:80]} has more than {LONGEST_QUERY} letters")
        numbers = {key: _number(name, key, raw[key]) for key in ("time", "start", "end", "step") if key in raw}
        is_range = {"start", "end", "step"} & set(numbers)
        if is_range and (len(is_range) != 3 or "time" in numbers):  # noqa: PLR2004 - start, end and step
            raise Refused(f"the query {name[:80]} has start, end and step together, or none of them")
        if is_range and (numbers["step"] <= 0 or numbers["end"] < numbers["start"]):
            raise Refused(f"the query {name[:80]} has a step that is not positive, or ends before it starts")
        return cls(name, expr, **numbers)


def _number(name: str, key: str, value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value):
        raise Refused(f"{key} of the query {name[:80]} is not a number")
    return float(value)


def parse_request(text: str) -> tuple[Query, ...]:
    """The queries of a request.

    Raises:
        Refused: it is something else, or asks for too much.
    """
    try:
        raw = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise Refused(f"the request is not JSON: {str(error)[:200]}") from None
    queries = raw.get("queries") if isinstance(raw, dict) else None
    if not isinstance(queries, list):
        raise Refused("the request has no list `queries`", 'Give {"queries": [{"name": "up", "expr": "up"}]}')
    if len(queries) > MOST_QUERIES:
        raise Refused(f"the request has more than {MOST_QUERIES} queries")
    result = tuple(map(Query.parse, queries))
    if len({query.name for query in result}) != len(result):
        raise Refused("two queries have the same name")
    return result


@dataclass(frozen=True)
class Prometheus:
    """The one of this host.

    Args:
        bytes_limit: bytes of one answer.
    """

    host: str = HOST
    port: int = PORT
    seconds: float = QUERY_SECONDS
    bytes_limit: int = MOST_BYTES

    def ask(self, path: str, form: Mapping[str, str] | None = None, until: float = math.inf) -> Any:
        """`data` of an answer of its API. With a form it is sent by POST.

        Args:
            until: by time.monotonic().

        Raises:
            NoPrometheusAnswer: there is no answer, or none within the limits.
            Failed: Prometheus refuses; its words.
        """
        seconds = min(self.seconds, until - time.monotonic())
        if seconds <= 0:
            raise NoPrometheusAnswer("there was no time left to ask Prometheus")
        # A proxy of the environment is never asked: http.client knows none.
        connection = http.client.HTTPConnection(self.host, self.port, timeout=seconds)
        try:
            body = urlencode(form) if form is not None else None
            headers = {"Content-Type": "application/x-www-form-urlencoded"} if body is not None else {}
            connection.request("POST" if body is not None else "GET", path, body, headers)
            answer = connection.getresponse()
            content = _limited(answer, time.monotonic() + seconds, self.bytes_limit)
        except (OSError, http.client.HTTPException) as error:
            why = (
                f"no answer within {seconds:.0f} s" if isinstance(error, socket.timeout) else str(error) or repr(error)
            )
            raise NoPrometheusAnswer(f"Prometheus does not answer on {self.host}:{self.port}: {why}") from None
        finally:
            connection.close()
        return _data(content, answer.status)

    def run(self, query: Query, until: float = math.inf) -> list[dict[str, Any]]:
        """The series of a query: `{"labels": {...}, "values": [[epoch, float], ...]}`. What is not a finite number is
        left out: it is a gap.

        Raises:
            Failed: there is no answer, or Prometheus refuses; its words.
        """
        form = {"query": query.expr, "timeout": f"{self.seconds:.0f}s"}
        if query.start is not None:
            form.update(start=repr(query.start), end=repr(query.end), step=repr(query.step))
            return series(self.ask("/api/v1/query_range", form, until))
        if query.time is not None:
            form["time"] = repr(query.time)
        return series(self.ask("/api/v1/query", form, until))


def _limited(answer: http.client.HTTPResponse, until: float, most: int) -> bytes:
    """The body. The connection's time limit is for each read, so that drops of bytes could go on for ever.

    Raises:
        NoPrometheusAnswer: it is too long or takes too long.
    """
    parts, size = [], 0
    while part := answer.read1(1 << 16):
        size += len(part)
        if size > most:
            raise NoPrometheusAnswer(f"the answer of Prometheus has more than {most // 2**20} MiB: ask for less")
        if time.monotonic() > until:
            raise NoPrometheusAnswer("the answer of Prometheus takes too long: ask for less")
        parts.append(part)
    return b"".join(parts)


def _data(content: bytes, status: int) -> Any:
    try:
        raw = json.loads(content)
        if not isinstance(raw, dict):
            raise ValueError("no object")
    except (ValueError, RecursionError):
        words = content[:200].decode(errors="replace").strip()
        raise Failed(f"Prometheus answers {status}: {words or 'nothing'}") from None
    if raw.get("status") != "success":
        raise Failed(str(raw.get("error") or f"status {status}")[:1000])
    return raw.get("data")


def series(data: Any) -> list[dict[str, Any]]:
    """Vectors, matrices, scalars and strings of Prometheus' API in one form."""
    kind, result = data.get("resultType"), data.get("result")
    if kind == "scalar":
        return [{"labels": {}, "values": _finite([result])}]
    if kind == "string":
        return []
    return [
        {"labels": each.get("metric", {}), "values": _finite(each["values"] if "values" in each else [each["value"]])}
        for each in result
    ]


def _finite(points: Sequence[Any]) -> list[list[float]]:
    values = []
    for moment, text in points:
        value = float(text)
        if math.isfinite(value):
            values.append([float(moment), value])
    return values


def answer(prometheus: Prometheus, queries: Sequence[Query]) -> dict[str, Any]:
    """What `monitor query` prints: the results by the names of the queries, and what did not work."""
    until = time.monotonic() + ALL_SECONDS
    try:
        prometheus.ask("/api/v1/status/buildinfo", until=until)
    except AgentError as error:
        return {"prometheus": False, "why": error.message, "results": {}, "errors": {}}
    results: dict[str, Any] = {}
    errors: dict[str, str] = {}

    def one(query: Query) -> None:
        try:
            results[query.name] = prometheus.run(query, until)
        except AgentError as error:
            errors[query.name] = error.message
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            errors[query.name] = f"the answer can't be read: {error!r}"

    with ThreadPoolExecutor(_TOGETHER) as pool:
        list(pool.map(one, queries))
    return {"prometheus": True, "why": "", "results": results, "errors": errors}
