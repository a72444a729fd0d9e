"""YAML that programs of ours have written, read by the parser of libyaml where it is there.

The one in Python takes ten times as long, and some tests read some hundred documents. The result is the same.
"""

from __future__ import annotations

from typing import Any

import yaml

_Loader: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


def parse(text: str) -> Any:
    """The one document of a text."""
    return yaml.load(text, Loader=_Loader)


def parse_all(text: str) -> list[Any]:
    """All documents of a text."""
    return list(yaml.load_all(text, Loader=_Loader))
