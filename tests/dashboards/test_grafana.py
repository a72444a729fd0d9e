"""The JSON of dashboards: places of panels, queries, limits, choices. test_queries.py asks a real Prometheus."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpucluster.dashboards.grafana import (
    COLUMNS,
    TAG,
    DashboardRow,
    Panel,
    PanelQuery,
    Variable,
    dashboard,
    stat,
    table,
    timeseries,
)


def panels(*rows: DashboardRow) -> list[dict[str, Any]]:
    made: list[dict[str, Any]] = dashboard("a", "A", "For tests.", rows)["panels"]
    return made


def sized(width: int, height: int) -> Panel:
    return Panel({"type": "text"}, width, height)


@given(
    st.lists(
        st.lists(st.tuples(st.integers(1, COLUMNS), st.integers(1, 10)), min_size=1, max_size=6), min_size=1, max_size=4
    )
)
def test_panels_lie_beside_and_below_each_other_and_never_on_each_other(sizes: list[list[tuple[int, int]]]) -> None:
    made = panels(*(DashboardRow(f"row {at}", [sized(*size) for size in row]) for at, row in enumerate(sizes)))
    taken: set[tuple[int, int]] = set()
    for panel in made:
        place = panel["gridPos"]
        assert 0 <= place["x"] <= COLUMNS - place["w"]
        cells = {
            (x, y)
            for x in range(place["x"], place["x"] + place["w"])
            for y in range(place["y"], place["y"] + place["h"])
        }
        assert not cells & taken
        taken |= cells
    assert [panel["id"] for panel in made] == list(range(1, len(made) + 1))
    assert [panel["title"] for panel in made if panel["type"] == "row"] == [f"row {at}" for at in range(len(sizes))]


def test_the_queries_of_a_panel_have_names_and_legends() -> None:
    panel = timeseries("Use", "What it is.", "percentunit", PanelQuery("a"), PanelQuery("b", "{{node}}"), most=1.0)
    targets = panel.body["targets"]
    assert [(each["refId"], each["expr"], each["legendFormat"]) for each in targets] == [
        ("A", "a", "__auto"),
        ("B", "b", "{{node}}"),
    ]
    defaults = panel.body["fieldConfig"]["defaults"]
    assert (defaults["unit"], defaults["min"], defaults["max"]) == ("percentunit", 0, 1.0)
    # The data source is a choice, so that the files fit every Grafana.
    assert {each["datasource"]["uid"] for each in targets} == {"${datasource}"}


def test_limits_are_colours_from_a_value_on_in_their_order() -> None:
    panel = stat("Hot", "What it is.", "celsius", PanelQuery("a"), limits={90: "red", 80: "orange"})
    assert panel.body["fieldConfig"]["defaults"]["thresholds"]["steps"] == [
        {"color": "green", "value": None},
        {"color": "orange", "value": 80},
        {"color": "red", "value": 90},
    ]
    assert panel.body["options"]["colorMode"] == "value"
    assert stat("Hot", "x", "short", PanelQuery("a")).body["options"]["colorMode"] == "none"


def test_a_table_shows_the_named_columns_alone_and_joins_its_queries() -> None:
    columns = {"node": "Node", "Value #A": "Watts", "Value #B": "Jobs"}
    panel = table(
        "Nodes", "x", PanelQuery("a"), PanelQuery("b"), columns=columns, units={"Watts": "watt"},
        links={"Node": "/d/node?var-node=${__value.text}"},
    )  # fmt: skip
    merge, organize = panel.body["transformations"]
    assert merge["id"] == "merge"
    assert organize["options"]["renameByName"] == columns
    assert organize["options"]["indexByName"] == {"node": 0, "Value #A": 1, "Value #B": 2}
    assert all(each["instant"] and each["format"] == "table" for each in panel.body["targets"])
    overridden = {each["matcher"]["options"]: each["properties"][0] for each in panel.body["fieldConfig"]["overrides"]}
    assert overridden["Watts"] == {"id": "unit", "value": "watt"}
    assert overridden["Node"]["value"][0]["url"] == "/d/node?var-node=${__value.text}"
    alone = table("Nodes", "x", PanelQuery("a"), columns={"node": "Node"})
    assert [each["id"] for each in alone.body["transformations"]] == ["organize"]


@pytest.mark.parametrize(("every", "regex"), [(True, ".*"), (False, None)])
def test_a_choice_offers_the_values_of_a_label(every: bool, regex: str | None) -> None:
    made = dashboard("a", "A", "x", [], [Variable("node", "Node", 'up{pool="$pool"}', all=every)])
    source, choice = made["templating"]["list"]
    assert (source["name"], source["type"]) == ("datasource", "datasource")
    assert choice["query"]["query"] == 'label_values(up{pool="$pool"}, node)'
    assert (choice["multi"], choice["includeAll"], choice.get("allValue")) == (every, every, regex)


def test_a_dashboard_is_found_by_its_tag_and_is_json() -> None:
    made = dashboard("a", "A", "For tests.", [DashboardRow("One", [sized(6, 4)])])
    assert made["tags"] == made["links"][0]["tags"] == [TAG]
    assert json.loads(json.dumps(made)) == made
