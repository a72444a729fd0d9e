"""Events that a test has got, judged by the schema that is published (docs/reference/events.schema.json)."""

from __future__ import annotations

import functools
import json
from collections.abc import Iterable, Mapping
from typing import Any

from jsonschema import Draft202012Validator, ValidationError

from gpucluster.events.schema import event_schema

#: Commands that print what another program prints, which may be JSON, too.
PASSES_ON = frozenset({"autoscaler", "cp", "kubectl", "ssh"})


@functools.cache
def _validators() -> Mapping[str, Draft202012Validator]:
    """By kind: the reason of a refusal is shorter than that of all kinds together."""
    schema: dict[str, Any] = dict(event_schema())
    return {kind: Draft202012Validator({"$schema": schema["$schema"], **of}) for kind, of in schema["$defs"].items()}


def require_valid(events: Iterable[Mapping[str, Any]]) -> None:
    """Fail for an event that is not as the schema has it."""
    for event in events:
        try:
            # As a program reads it: tuples are lists then.
            _validators()[str(event.get("kind"))].validate(json.loads(json.dumps(event)))
        except (KeyError, ValidationError) as error:
            reason = error.message if isinstance(error, ValidationError) else f"there is no kind {error}"
            raise AssertionError(f"not an event by its schema: {reason}\n{event}") from None
