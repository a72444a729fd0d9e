"""How many examples a property is tried with.

The numbers are those of `make test`. `make check` has a quarter of them, and the oldest Python of hosts a tenth: their
profiles (tests/conftest.py, tests/node_agent/conftest.py) set it. Standard library of Python 3.9 and hypothesis only.
"""

from __future__ import annotations

from typing import Any

from hypothesis import settings

_USUAL = settings.get_profile("default").max_examples
_LEAST = 5


def examples(number: int, **options: Any) -> settings:
    """The settings of a property that needs more or fewer examples than others; `options` are those of `settings`."""
    assert settings.default is not None
    return settings(max_examples=max(number * settings.default.max_examples // _USUAL, _LEAST), **options)
