"""Injected faults: `<home>/faults.json` makes operations fail as OCI would, to test the callers of the API.

    [{"operation": "LaunchInstance*", "shape": "BM.GPU*", "message": "Out of host capacity.", "times": 2}]

The file is a list of objects. The server reads it at every request, so it may change while the server runs. The faults
that match a request apply in the order of the list: delays add up, and the first error ends the request.

Which requests
    operation            the SDK's name (CreateVcn), a pattern (LaunchInstance*) or "*" for all; or a name that only the
                         local cloud has: BootInstance for what happens after a launch was accepted, EndInstance after
                         a termination, MakeImage after a CreateImage, ReleaseVnic after a mount target was deleted,
                         whose VNIC is released later, ReclaimCapacity after a preemptible instance has started, which
                         then ends by itself (these four take `delay` and `until_removed` only), and
                         ReplaceBootVolume after an UpdateInstance with another image was accepted. A pattern never
                         matches these names.
    shape, availability_domain, display_name, instance_configuration, image (the last two: OCID or display name)
                         patterns, too; an operation that is not about an instance has none of these and never matches.
                         With UpdateInstance and ReplaceBootVolume, `image` is the new one.
How often
    times                at most so many times, counted again after the fault was removed from the file and put back.
    every                only each n-th request that matches.
    after                not the first n requests that match.
    probability          at random, with the same sequence for the same `seed` (default 0).
Effect
    status, code, message   the error response; the default status is 500. 401, 404, 429, 500 and 503 need no code.
    delay                seconds to wait before the operation continues.
    until_removed        true: the operation continues when the fault is not in the file any more.
    rate                 requests per second that are accepted; the others get 429 TooManyRequests.
    lost_response        true: the operation is carried out, and the connection is closed without a response.
    stale_seconds        (ListInstances) the list as it was so many seconds ago.
    status, code or message with BootInstance   TERMINATED, and the work request FAILED with this.
    status, code or message with ReplaceBootVolume   the instance has its old boot volume again, and the work request
                         FAILED with this.
    dead                 (BootInstance, ReplaceBootVolume) true: RUNNING, but no container is started.
    hosts                without an operation: the number of hosts of the `shape` (in the `availability_domain`); a
                         launch that finds none free gets 500 InternalError "Out of host capacity.".

A launch that is repeated with a known retry token does not get the errors 400, 404 and 500: OCI answers with the
existing instance.
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
RECLAIM = "ReclaimCapacity"
REPLACE_BOOT_VOLUME = "ReplaceBootVolume"
_OWN_OPERATIONS = (BOOT, END, MAKE_IMAGE, RECLAIM, RELEASE_VNIC, REPLACE_BOOT_VOLUME)
OUT_OF_CAPACITY = "Out of host capacity."
Facts = Mapping[str, tuple[str, ...]]
_Fault = Mapping[str, Any]

_FILTERS = ("shape", "availability_domain", "display_name", "instance_configuration", "image")
_NUMBERS = ("status", "times", "every", "after", "probability", "delay", "rate", "stale_seconds", "hosts")
_TEXTS = ("operation", "code", "message", "comment", *_FILTERS)
_SWITCHES = ("dead", "lost_response", "until_removed")
_CODES = {
    401: ("NotAuthenticated", "The required information to complete authentication was not provided or was incorrect."),
    404: ("NotAuthorizedOrNotFound", "Authorization failed or requested resource not found."),
    429: ("TooManyRequests", "Too many requests for the user."),
    500: ("InternalError", "An internal server error occurred."),
    503: ("ServiceUnavailable", "The service is currently unavailable."),
}
# Errors that a repeated launch does not get, because its instance exists.
_NOT_FOR_REPEATS = (400, 404, 500)


@dataclass
class Effect:
    """What the faults do to one request, one boot or one termination."""

    delay: float = 0.0
    held_by: tuple[_Fault, ...] = ()
    error: ApiError | None = None
    lost_response: bool = False
    dead: bool = False
    stale_seconds: float = 0.0

    @property
    def waits(self) -> bool:
        """Whether the operation does not continue at once."""
        return self.delay > 0 or bool(self.held_by)


class Faults:
    """The faults of one home.

    Args:
        clock: seconds, for tests.
    """

    def __init__(self, home: Path, clock: Callable[[], float] = time.monotonic) -> None:
        self._file = home / "faults.json"
        self._clock = clock
        self._lock = threading.Lock()
        self._text = ""
        self._faults: list[_Fault] = []
        self._histories: dict[str, _History] = {}

    def effect_on(self, operation: str, facts: Callable[[], Facts], *, repeated: bool = False) -> Effect:
        """What the faults do to this request. Counts the request for every fault that matches it.

        Args:
            facts: what the request is about, by the names of the filters; called only if a fault has a filter.
            repeated: the request repeats one that was carried out.

        Raises:
            ApiError: the file is not a list of valid faults. Without this error a test could pass because of a typo.
        """
        effect = Effect()
        with self._lock:
            needs_facts = any(
                "operation" in fault and _matches_operation(fault, operation) and _filters_of(fault)
                for fault in self._read()
            )
        # Without the lock: `facts` reads the store, and a thread that holds the store may wait for this lock.
        known = facts() if needs_facts else {}
        with self._lock:
            for fault in self._read():
                if effect.error is None and "operation" in fault and self._applies(fault, operation, known, repeated):
                    _add(effect, fault, operation)
        return effect

    def boot(self, facts: Facts) -> Effect:
        """What happens to an instance after its launch was accepted."""
        return self.effect_on(BOOT, lambda: facts)

    def replace_boot_volume(self, facts: Facts) -> Effect:
        """What happens to an instance after another image for it was accepted."""
        return self.effect_on(REPLACE_BOOT_VOLUME, lambda: facts)

    def end(self, facts: Facts) -> Effect:
        """What happens to an instance after its termination was accepted."""
        return self.effect_on(END, lambda: facts)

    def reclaim(self, facts: Facts) -> Effect | None:
        """When the capacity of a preemptible instance is taken back; None if it is not."""
        effect = self.effect_on(RECLAIM, lambda: facts)
        return effect if effect.waits else None

    def make_image(self, facts: Facts) -> Effect:
        """What happens to an instance while its image is made."""
        return self.effect_on(MAKE_IMAGE, lambda: facts)

    def release_vnic(self, facts: Facts) -> Effect:
        """What happens to the VNIC of a deleted mount target."""
        return self.effect_on(RELEASE_VNIC, lambda: facts)

    def holds(self, effect: Effect) -> bool:
        """Whether a fault with `until_removed` is still in the file. While the file is damaged, it is."""
        if not effect.held_by:
            return False
        with self._lock:
            try:
                present = self._read()
            except ApiError:
                return True
            return any(fault in present for fault in effect.held_by)

    def hosts(self, shape: str, domain: str) -> Iterator[tuple[int, bool]]:
        """The limits on hosts of a shape: (number, whether only the hosts of this availability domain count)."""
        facts: Facts = {"shape": (shape,), "availability_domain": (domain,)}
        with self._lock:
            faults = [fault for fault in self._read() if "hosts" in fault and _matches_facts(fault, facts)]
        for fault in faults:
            yield int(fault["hosts"]), "availability_domain" in fault

    def out_of_capacity(self, shape: str, domain: str) -> bool:
        """Whether a launch of this shape would fail with "Out of host capacity.", by the faults alone."""
        facts: Facts = {"shape": (shape,), "availability_domain": (domain,)}
        with self._lock:
            return any(
                str(fault.get("message", "")).lower().startswith("out of host capacity")
                and any(
                    _matches_operation(fault, name) for name in ("LaunchInstance", "LaunchInstanceConfiguration", BOOT)
                )
                and _matches_facts(fault, {"display_name": (), "instance_configuration": (), **facts})
                and not self._history_of(fault).exhausted(fault)
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
            present = {_key(fault) for fault in faults}
            self._histories = {key: history for key, history in self._histories.items() if key in present}
        return self._faults

    def _history_of(self, fault: _Fault) -> _History:
        return self._histories.setdefault(_key(fault), _History(fault, self._clock))

    def _applies(self, fault: _Fault, operation: str, facts: Facts, repeated: bool) -> bool:
        if not _matches_operation(fault, operation) or not _matches_facts(fault, facts):
            return False
        error = _error_of(fault)
        if repeated and error is not None and error.status in _NOT_FOR_REPEATS:
            return False
        return self._history_of(fault).count_match(fault)


class _History:
    """How often a fault matched a request and how often it was applied."""

    def __init__(self, fault: _Fault, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._counts: Counter[str] = Counter()
        self._random = random.Random(fault.get("seed", 0))  # noqa: S311 - the sequence must be the same in every run
        self._tokens = max(1.0, float(fault.get("rate", 0)))
        self._filled_at = clock()

    def exhausted(self, fault: _Fault) -> bool:
        """Whether the fault was applied as often as it may be."""
        return "times" in fault and self._counts["applied"] >= int(fault["times"])

    def count_match(self, fault: _Fault) -> bool:
        """Count one request that matches; True if the fault applies to it."""
        if self.exhausted(fault):
            return False
        self._counts["matched"] += 1
        position = self._counts["matched"] - int(fault.get("after", 0))
        if position <= 0 or position % int(fault.get("every", 1)):
            return False
        if self._random.random() >= float(fault.get("probability", 1)):
            return False
        if "rate" in fault and self._within(float(fault["rate"])):
            return False
        self._counts["applied"] += 1
        return True

    def _within(self, rate: float) -> bool:
        now = self._clock()
        self._tokens = min(max(1.0, rate), self._tokens + (now - self._filled_at) * rate)
        self._filled_at = now
        if self._tokens < 1:
            return False
        self._tokens -= 1
        return True


def _key(fault: _Fault) -> str:
    return json.dumps(fault, sort_keys=True)


def _matches_operation(fault: _Fault, operation: str) -> bool:
    pattern = str(fault["operation"])
    return pattern == operation if operation in _OWN_OPERATIONS else fnmatchcase(operation, pattern)


def _filters_of(fault: _Fault) -> list[str]:
    """The filters that the fault has."""
    return [name for name in _FILTERS if name in fault]


def _matches_facts(fault: _Fault, facts: Facts) -> bool:
    return all(
        any(fnmatchcase(value, str(fault[name])) for value in facts.get(name, ())) for name in _filters_of(fault)
    )


def _add(effect: Effect, fault: _Fault, operation: str) -> None:
    effect.delay += float(fault.get("delay", 0))
    if fault.get("until_removed"):
        effect.held_by = (*effect.held_by, fault)
    effect.lost_response |= bool(fault.get("lost_response"))
    effect.dead |= bool(fault.get("dead"))
    effect.stale_seconds = max(effect.stale_seconds, float(fault.get("stale_seconds", 0)))
    effect.error = _error_of(fault, operation)


def _error_of(fault: _Fault, operation: str = "") -> ApiError | None:
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
    unknown = set(fault) - {*_NUMBERS, *_TEXTS, *_SWITCHES, "seed"}
    if unknown:
        raise ValueError(f"unknown: {', '.join(sorted(unknown))}")
    for names, kind in ((_NUMBERS, (int, float)), (_TEXTS, (str,)), (_SWITCHES, (bool,))):
        for name in names:
            if name in fault and (
                not isinstance(fault[name], kind) or (isinstance(fault[name], bool) and kind != (bool,))
            ):
                raise TypeError(f"{name} {fault[name]!r} is of the wrong type")
    if ("operation" in fault) == ("hosts" in fault):
        raise ValueError("a fault has either an operation or a number of hosts")
    error = _error_of(fault)
    if error is not None and not error.code:
        raise ValueError(f"status {error.status} needs a code")
