"""Faults on purpose: `<home>/faults.json` makes operations fail as OCI would, for tests of whatever calls the API.

    [{"operation": "LaunchInstance*", "shape": "BM.GPU*", "message": "Out of host capacity.", "times": 2}]

The file is a list of objects and is read at every request, so it may change while the server runs. Those that fit a
request are taken in their order: delays add up, and the first that refuses ends it.

Which requests
    operation            the SDK's name (CreateVcn), a pattern (LaunchInstance*) or "*" for all; or one of our own:
                         BootInstance for what happens after a launch was accepted, EndInstance after a termination,
                         MakeImage after a CreateImage, ReleaseVnic after the end of a mount target, whose VNIC goes
                         later than itself (the last three: `delay` alone). A pattern never means one of ours.
    shape, availability_domain, display_name, instance_configuration (OCID or display name)
                         patterns too; operations that are not about an instance have none of these, and do not fit.
How often
    times                so many times, then never again, until the file has changed in between.
    every                only each n-th that fits.
    after                not the first n that fit.
    probability          by chance, the same each time for the same `seed` (0 if it is not given).
What
    status, code, message   the refusal; status is 500 unless given. 401, 404, 429, 500 and 503 need no code.
    delay                seconds before it goes on.
    rate                 requests a second that are let through; the others get 429 TooManyRequests.
    lost_response        true: it is done, and the connection closed without an answer.
    stale_seconds        (ListInstances) what would have been listed so long ago.
    status, code or message with BootInstance   TERMINATED, and the work request FAILED with this.
    dead                 (BootInstance) true: RUNNING, but nothing ever boots.
    hosts                without an operation: so many hosts of the `shape` (in the `availability_domain`); a launch
                         that finds none free gets 500 InternalError "Out of host capacity.".

A launch that is sent again with a retry token that is known is not refused with 400, 404 or 500: OCI answers with the
instance that is there.
"""

from __future__ import annotations

import json
import random
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from gpucluster.localcloud.state.wire import ApiError

BOOT, END, MAKE_IMAGE, RELEASE_VNIC = "BootInstance", "EndInstance", "MakeImage", "ReleaseVnic"
_OURS = (BOOT, END, MAKE_IMAGE, RELEASE_VNIC)
OUT_OF_CAPACITY = "Out of host capacity."
Facts = Mapping[str, tuple[str, ...]]
_Fault = Mapping[str, Any]

_FILTERS = ("shape", "availability_domain", "display_name", "instance_configuration")
_NUMBERS = ("status", "times", "every", "after", "probability", "delay", "rate", "stale_seconds", "hosts")
_WORDS = ("operation", "code", "message", "comment", *_FILTERS)
_SWITCHES = ("dead", "lost_response")
_CODES = {
    401: ("NotAuthenticated", "The required information to complete authentication was not provided or was incorrect."),
    404: ("NotAuthorizedOrNotFound", "Authorization failed or requested resource not found."),
    429: ("TooManyRequests", "Too many requests for the user."),
    500: ("InternalError", "An internal server error occurred."),
    503: ("ServiceUnavailable", "The service is currently unavailable."),
}
# What is not said to a launch that is already done.
_ONLY_NEW = (400, 404, 500)


@dataclass
class Effect:
    """What befalls one request, one boot or one end."""

    delay: float = 0.0
    error: ApiError | None = None
    lost_response: bool = False
    dead: bool = False
    stale_seconds: float = 0.0


class Faults:
    """The faults of one home."""

    def __init__(self, home: Path) -> None:
        self._file = home / "faults.json"
        self._lock = threading.Lock()
        self._text = ""
        self._faults: list[_Fault] = []
        self._memory: dict[str, _Memory] = {}

    def on(self, operation: str, facts: Callable[[], Facts], *, again: bool = False) -> Effect:
        """What befalls this request.

        Args:
            facts: what it is about, under the names of the filters; asked only where a fault wants to know.
            again: it repeats one that has been carried out.

        Raises:
            ApiError: the file is not a list of such faults; a test must not pass by a typo.
        """
        effect = Effect()
        with self._lock:
            curious = any("operation" in fault and _names(fault, operation) and _asks(fault) for fault in self._read())
        # Not under our lock: the facts are in the store, and whoever holds that may be asking us for free hosts.
        known = facts() if curious else {}
        with self._lock:
            for fault in self._read():
                if effect.error is None and "operation" in fault and self._befalls(fault, operation, known, again):
                    _add(effect, fault, operation)
        return effect

    def boot(self, facts: Facts) -> Effect:
        """What befalls an instance after its launch was accepted."""
        return self.on(BOOT, lambda: facts)

    def end(self, facts: Facts) -> Effect:
        """What befalls an instance after its termination was accepted."""
        return self.on(END, lambda: facts)

    def make_image(self, facts: Facts) -> Effect:
        """What befalls an instance whose image is to be made."""
        return self.on(MAKE_IMAGE, lambda: facts)

    def release_vnic(self, facts: Facts) -> Effect:
        """What befalls the VNIC of a mount target that is gone."""
        return self.on(RELEASE_VNIC, lambda: facts)

    def hosts(self, shape: str, domain: str) -> Iterator[tuple[int, bool]]:
        """The limits on hosts of a shape, as (number, whether those of this domain alone are counted)."""
        facts: Facts = {"shape": (shape,), "availability_domain": (domain,)}
        with self._lock:
            found = [fault for fault in self._read() if "hosts" in fault and _fits(fault, facts)]
        for fault in found:
            yield int(fault["hosts"]), "availability_domain" in fault

    def out_of_capacity(self, shape: str, domain: str) -> bool:
        """Whether a launch of this shape would be refused for want of a host, as far as can be said beforehand."""
        facts: Facts = {"shape": (shape,), "availability_domain": (domain,)}
        with self._lock:
            return any(
                str(fault.get("message", "")).lower().startswith("out of host capacity")
                and any(_names(fault, name) for name in ("LaunchInstance", "LaunchInstanceConfiguration", BOOT))
                and _fits(fault, {"display_name": (), "instance_configuration": (), **facts})
                and not self._recall(fault).exhausted(fault)
                for fault in self._read()
                if "operation" in fault
            )

    def _read(self) -> list[_Fault]:
        try:
            text = self._file.read_text()
        except FileNotFoundError:
            text = "[]"
        if text != self._text:
            try:
                faults = json.loads(text)
                for fault in faults:
                    _check(fault)
            except (ValueError, KeyError, TypeError, AttributeError) as error:
                raise ApiError(500, "InternalError", f"{self._file} is not a list of faults: {error!r}") from error
            self._text, self._faults = text, faults
            kept = {_key(fault) for fault in faults}
            self._memory = {key: memory for key, memory in self._memory.items() if key in kept}
        return self._faults

    def _recall(self, fault: _Fault) -> _Memory:
        return self._memory.setdefault(_key(fault), _Memory(fault))

    def _befalls(self, fault: _Fault, operation: str, facts: Facts, again: bool) -> bool:
        if not _names(fault, operation) or not _fits(fault, facts):
            return False
        refusal = _refusal(fault)
        if again and refusal is not None and refusal.status in _ONLY_NEW:
            return False
        return self._recall(fault).fires(fault)


class _Memory:
    """How often a fault was met and how often it struck."""

    def __init__(self, fault: _Fault) -> None:
        self._counts: Counter[str] = Counter()
        self._random = random.Random(fault.get("seed", 0))  # noqa: S311 - to be the same each time
        self._tokens = max(1.0, float(fault.get("rate", 0)))
        self._filled_at = time.monotonic()

    def exhausted(self, fault: _Fault) -> bool:
        """It will not strike again."""
        return "times" in fault and self._counts["struck"] >= int(fault["times"])

    def fires(self, fault: _Fault) -> bool:
        """Count one request that it fits; True if it strikes."""
        if self.exhausted(fault):
            return False
        self._counts["met"] += 1
        late = self._counts["met"] - int(fault.get("after", 0))
        if late <= 0 or late % int(fault.get("every", 1)):
            return False
        if self._random.random() >= float(fault.get("probability", 1)):
            return False
        if "rate" in fault and self._within(float(fault["rate"])):
            return False
        self._counts["struck"] += 1
        return True

    def _within(self, rate: float) -> bool:
        now = time.monotonic()
        self._tokens = min(max(1.0, rate), self._tokens + (now - self._filled_at) * rate)
        self._filled_at = now
        if self._tokens < 1:
            return False
        self._tokens -= 1
        return True


def _key(fault: _Fault) -> str:
    return json.dumps(fault, sort_keys=True)


def _names(fault: _Fault, operation: str) -> bool:
    pattern = str(fault["operation"])
    return pattern == operation if operation in _OURS else fnmatchcase(operation, pattern)


def _asks(fault: _Fault) -> list[str]:
    """What it wants to know about a request."""
    return [name for name in _FILTERS if name in fault]


def _fits(fault: _Fault, facts: Facts) -> bool:
    return all(any(fnmatchcase(value, str(fault[name])) for value in facts.get(name, ())) for name in _asks(fault))


def _add(effect: Effect, fault: _Fault, operation: str) -> None:
    effect.delay += float(fault.get("delay", 0))
    effect.lost_response |= bool(fault.get("lost_response"))
    effect.dead |= bool(fault.get("dead"))
    effect.stale_seconds = max(effect.stale_seconds, float(fault.get("stale_seconds", 0)))
    effect.error = _refusal(fault, operation)


def _refusal(fault: _Fault, operation: str = "") -> ApiError | None:
    if "rate" in fault:
        fault = {"status": 429, **fault}
    if not any(name in fault for name in ("status", "code", "message")):
        return None
    status = int(fault.get("status", 500))
    code, message = _CODES.get(status, ("", ""))
    if operation == BOOT:
        message = OUT_OF_CAPACITY
    return ApiError(status, str(fault.get("code") or code), str(fault.get("message") or message))


def _check(fault: _Fault) -> None:
    unknown = set(fault) - {*_NUMBERS, *_WORDS, *_SWITCHES, "seed"}
    if unknown:
        raise ValueError(f"unknown: {', '.join(sorted(unknown))}")
    for names, kind in ((_NUMBERS, (int, float)), (_WORDS, (str,)), (_SWITCHES, (bool,))):
        for name in names:
            if name in fault and (
                not isinstance(fault[name], kind) or (isinstance(fault[name], bool) and kind != (bool,))
            ):
                raise TypeError(f"{name} {fault[name]!r} is of the wrong type")
    if ("operation" in fault) == ("hosts" in fault):
        raise ValueError("a fault has either an operation or a number of hosts")
    refusal = _refusal(fault)
    if refusal is not None and not refusal.code:
        raise ValueError(f"status {refusal.status} needs a code")
