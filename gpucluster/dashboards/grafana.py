"""What a dashboard is made of, as the JSON that Grafana reads from files: panels, variables, links.

The model is that of Grafana's own pages "Dashboard JSON model" and of each visualization, version 39 (Grafana 11).
Later releases read and convert. Pure: dicts in the order in which they are written.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

SCHEMA = 39
#: Dashboards are found by it: the menu of each one lists all others.
TAG = "gpucluster"
COLUMNS = 24
_HEIGHT = 8
#: The variable that holds the data source, so that the files fit every Grafana.
_SOURCE = {"type": "prometheus", "uid": "${datasource}"}

Json = dict[str, Any]


@dataclass(frozen=True)
class PanelQuery:
    """A query of Prometheus, and the legend of its series."""

    expr: str
    legend: str = ""


@dataclass(frozen=True)
class Panel:
    """A panel without its place.

    Args:
        body: what Grafana reads.
        width: of 24 columns.
        height: in Grafana's rows of 30 pixels.
    """

    body: Json
    width: int
    height: int


@dataclass(frozen=True)
class DashboardRow:
    """A title and the panels below it."""

    title: str
    panels: Sequence[Panel]


@dataclass(frozen=True)
class Variable:
    """A choice at the top of a dashboard: the values of a label.

    Args:
        metric: the series whose values are offered; it may name variables above this one.
        all: whether all of them may be chosen at once, which is then the default.
    """

    name: str
    title: str
    metric: str
    all: bool = False

    @property
    def query(self) -> str:
        """As Grafana's data source for Prometheus reads it."""
        return f"label_values({self.metric}, {self.name})"


def timeseries(
    title: str, text: str, unit: str, *queries: PanelQuery, most: float | None = None, stacked: bool = False,
    limits: Mapping[float, str] | None = None, width: int = 12,
) -> Panel:  # fmt: skip
    """Lines over time.

    Args:
        text: what the panel shows, for the mouse over its title.
        unit: Grafana's name of it: percentunit, bytes, Bps, watt, celsius, short, s.
        most: the upper end of the axis.
        limits: colour from a value on; drawn as lines.
    """
    custom: Json = {
        "drawStyle": "line",
        "lineWidth": 1,
        "fillOpacity": 25 if stacked else 5,
        "showPoints": "auto",
        "spanNulls": False,
    }
    if stacked:
        custom["stacking"] = {"mode": "normal", "group": "A"}
    if limits:
        custom["thresholdsStyle"] = {"mode": "dashed"}
    defaults: Json = {
        "unit": unit,
        "min": 0,
        "custom": custom,
        "color": {"mode": "palette-classic"},
        **_thresholds(limits),
    }
    if most is not None:
        defaults["max"] = most
    options = {
        "legend": {"displayMode": "list", "placement": "bottom", "showLegend": True},
        "tooltip": {"mode": "multi", "sort": "desc"},
    }
    return Panel(_panel("timeseries", title, text, queries, defaults, options), width, _HEIGHT)


def stat(
    title: str, text: str, unit: str, *queries: PanelQuery, limits: Mapping[float, str] | None = None, width: int = 4
) -> Panel:
    """The present value, large.

    Args:
        limits: colour from a value on.
    """
    options = {
        "reduceOptions": {"calcs": ["lastNotNull"], "fields": "", "values": False},
        "colorMode": "value" if limits else "none",
        "graphMode": "none",
        "textMode": "auto",
    }
    defaults = {"unit": unit, "color": {"mode": "thresholds"}, **_thresholds(limits)}
    return Panel(_panel("stat", title, text, queries, defaults, options), width, _HEIGHT // 2)


def table(
    title: str, text: str, *queries: PanelQuery, columns: Mapping[str, str], units: Mapping[str, str] | None = None,
    links: Mapping[str, str] | None = None, width: int = 24,
) -> Panel:  # fmt: skip
    """The present series as rows.

    Args:
        columns: title of each column, by the label (or `Value`, with several queries `Value #A` and so on), in their
            order; other labels are not shown.
        units: of a column, by its title.
        links: address that a cell leads to, by the column's title.
    """
    body = _panel("table", title, text, queries, {"custom": {"filterable": True}}, {"showHeader": True}, table=True)
    organize = {
        "indexByName": {name: place for place, name in enumerate(columns)},
        "renameByName": dict(columns),
        "includeByName": dict.fromkeys(columns, True),
    }
    merge = [{"id": "merge", "options": {}}] if len(queries) > 1 else []
    body["transformations"] = [*merge, {"id": "organize", "options": organize}]
    overrides = [_override(name, "unit", unit) for name, unit in (units or {}).items()]
    overrides += [
        _override(name, "links", [{"title": "Dashboard of ${__value.text}", "url": url}])
        for name, url in (links or {}).items()
    ]
    body["fieldConfig"]["overrides"] = overrides
    return Panel(body, width, _HEIGHT)


def dashboard(
    uid: str, title: str, text: str, rows: Sequence[DashboardRow], variables: Sequence[Variable] = ()
) -> Json:
    """A dashboard.

    Args:
        uid: is its address: /d/UID.
        text: what it is for.
    """
    return {
        "uid": uid,
        "title": title,
        "description": text,
        "tags": [TAG],
        "schemaVersion": SCHEMA,
        "version": 1,
        "editable": True,
        "graphTooltip": 1,
        "refresh": "30s",
        "timezone": "browser",
        "time": {"from": "now-3h", "to": "now"},
        "links": [
            {
                "type": "dashboards", "title": "Dashboards", "tags": [TAG], "asDropdown": True, "keepTime": True,
                "includeVars": False, "targetBlank": False, "icon": "external link", "tooltip": "", "url": "",
            }
        ],
        "annotations": {"list": []},
        "templating": {"list": [_source_variable(), *(_variable(each) for each in variables)]},
        "panels": list(_placed(rows)),
    }  # fmt: skip


def _panel(
    kind: str,
    title: str,
    text: str,
    queries: Sequence[PanelQuery],
    defaults: Json,
    options: Json,
    *,
    table: bool = False,
) -> Json:
    return {
        "type": kind,
        "title": title,
        "description": text,
        "datasource": _SOURCE,
        "targets": [_target(query, chr(ord("A") + place), table=table) for place, query in enumerate(queries)],
        "fieldConfig": {"defaults": defaults, "overrides": []},
        "options": options,
    }


def _target(query: PanelQuery, name: str, *, table: bool) -> Json:
    target: Json = {"refId": name, "datasource": _SOURCE, "expr": query.expr, "legendFormat": query.legend or "__auto"}
    if table:
        target |= {"format": "table", "instant": True, "range": False}
    return target


def _thresholds(limits: Mapping[float, str] | None) -> Json:
    steps: list[Json] = [{"color": "green", "value": None}]
    steps += [{"color": colour, "value": value} for value, colour in sorted((limits or {}).items())]
    return {"thresholds": {"mode": "absolute", "steps": steps}}


def _override(column: str, name: str, value: Any) -> Json:
    return {"matcher": {"id": "byName", "options": column}, "properties": [{"id": name, "value": value}]}


def _source_variable() -> Json:
    return {
        "type": "datasource",
        "name": "datasource",
        "label": "Data source",
        "query": "prometheus",
        "hide": 0,
        "current": {},
    }


def _variable(variable: Variable) -> Json:
    settings: Json = {
        "type": "query",
        "name": variable.name,
        "label": variable.title,
        "datasource": _SOURCE,
        "query": {"query": variable.query, "refId": variable.name},
        # Again when the time range changes: a job that has ended is found in its time.
        "refresh": 2,
        "sort": 7,
        "hide": 0,
        "multi": variable.all,
        "includeAll": variable.all,
        "current": {"selected": True, "text": ["All"], "value": ["$__all"]} if variable.all else {},
    }
    return {**settings, "allValue": ".*"} if variable.all else settings


def _placed(rows: Sequence[DashboardRow]) -> Iterator[Json]:
    """The panels with their places: from left to right, in a new line where the width ends."""
    number, top = 0, 0
    for row in rows:
        number += 1
        yield {
            "id": number, "type": "row", "title": row.title, "collapsed": False, "panels": [],
            "gridPos": {"x": 0, "y": top, "w": COLUMNS, "h": 1},
        }  # fmt: skip
        left, top, tallest = 0, top + 1, 0
        for panel in row.panels:
            if left + panel.width > COLUMNS:
                left, top, tallest = 0, top + tallest, 0
            number += 1
            yield {"id": number, **panel.body, "gridPos": {"x": left, "y": top, "w": panel.width, "h": panel.height}}
            left, tallest = left + panel.width, max(tallest, panel.height)
        top += tallest
