"""Pages of metrics as Prometheus' own parser reads them."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

Series = Mapping[tuple[str, frozenset[tuple[str, str]]], float]


def series(text: str) -> Series:
    """What Prometheus' parser makes of a page; each series once, each sample of a metric that has its type.

    Where the parser is missing (the oldest Python of hosts) the page is read by its grammar.
    """
    found: dict[tuple[str, frozenset[tuple[str, str]]], float] = {}
    names: list[str] = []
    for name, kind, samples in _families(text):
        names.append(name)
        assert kind in ("counter", "gauge"), name
        for sample, labels, value in samples:
            assert sample.endswith("_total") == (kind == "counter"), sample
            key = (sample, frozenset(labels.items()))
            assert key not in found, key
            found[key] = float(value)
    assert len(names) == len(set(names)), "a metric is in two places"
    return found


def _families(text: str) -> Iterator[tuple[str, str, list[tuple[str, Mapping[str, str], float]]]]:
    try:
        from prometheus_client.parser import text_string_to_metric_families as parsed
    except ImportError:
        yield from _by_grammar(text)
        return
    for family in parsed(text):
        assert family.documentation
        yield family.name, family.type, [(each.name, each.labels, each.value) for each in family.samples]


def _by_grammar(text: str) -> Iterator[tuple[str, str, list[tuple[str, Mapping[str, str], float]]]]:
    def unescaped(value: str) -> str:
        return re.sub(r"\\(.)", lambda found: {"n": "\n"}.get(found[1], found[1]), value)

    for block in re.split(r"^# HELP ", text, flags=re.MULTILINE)[1:]:
        help_line, type_line, *lines = block.removesuffix("\n").split("\n")
        name, kind = type_line.replace("# TYPE ", "", 1).split(" ")
        assert help_line.startswith(f"{name} ")
        samples: list[tuple[str, Mapping[str, str], float]] = []
        for line in lines:
            match = re.fullmatch(r'([a-z_]+)(?:\{((?:[a-z_]+="(?:[^"\\]|\\.)*",?)*)\})? (\S+)', line, re.DOTALL)
            assert match, line
            labels = re.findall(r'([a-z_]+)="((?:[^"\\]|\\.)*)"', match[2] or "", re.DOTALL)
            samples.append((match[1], {key: unescaped(value) for key, value in labels}, float(match[3])))
        yield name, kind, samples


def of(found: Series, name: str, **labels: str) -> float | None:
    """The value of one series."""
    return found.get((name, frozenset(labels.items())))


def having(found: Series, name: str) -> dict[tuple[tuple[str, str], ...], float]:
    """All series of a metric."""
    return {tuple(sorted(labels)): value for (metric, labels), value in found.items() if metric == name}
