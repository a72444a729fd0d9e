"""Files that are made from the model of cluster.yml: its reference page, its JSON schema and the demo's cluster.yml.

And files that are made from the SDK: the reference page of the local cloud's API, and the types of what it reads.

UPDATE_GOLDEN=1 writes them again.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import oci
import pytest

from gpucluster import environment, shapes
from gpucluster.autoscaler.daemon.metrics import Metrics
from gpucluster.controller.backup import schedule
from gpucluster.controller.drift import watch
from gpucluster.controller.health import metrics as health
from gpucluster.controller.logs import collect
from gpucluster.controller.monitor import slurm_metrics
from gpucluster.dashboards import metrics, nominal
from gpucluster.events.schema import event_schema_text
from gpucluster.localcloud.state import member_types
from gpucluster.node_agent.exporter import exposition
from gpucluster.node_agent.standby import keeping
from gpucluster.resource_manager import table as migration_table
from gpucluster.spec import template
from gpucluster.systems import matrix
from gpucluster.verdict import reference
from tests.golden import sdk_facts
from tools import error_catalogue, library_reference

REPOSITORY = Path(__file__).parents[2]
REFERENCE = REPOSITORY / "docs" / "reference"
DEMO = REPOSITORY / "inventories" / "local" / "cluster.yml"


def _compare(file: Path, made: str) -> None:
    if os.environ.get("UPDATE_GOLDEN"):
        file.write_text(made)
    assert made == file.read_text(), f"{file} is old; UPDATE_GOLDEN=1 writes it again"


@pytest.mark.parametrize(("what", "file"), [("schema", "cluster.schema.json"), ("reference", "cluster-yml.md")])
def test_the_generated_documents_are_up_to_date(what: str, file: str) -> None:
    made = subprocess.run([sys.executable, "-m", "gpucluster.spec", what], capture_output=True, text=True, check=True)
    _compare(REFERENCE / file, made.stdout)


def test_the_schema_of_events_is_in_the_reference() -> None:
    _compare(REFERENCE / "events.schema.json", event_schema_text())


def test_the_page_of_the_library_has_its_docstrings() -> None:
    _compare(REFERENCE / "library.md", library_reference.page())


def test_the_catalogue_of_errors_has_every_message() -> None:
    _compare(REFERENCE / "errors.md", error_catalogue.page())


def test_the_japanese_catalogue_of_errors_has_every_message() -> None:
    _compare(REFERENCE / "errors.ja.md", error_catalogue.japanese_page())


def test_the_demo_is_the_template() -> None:
    _compare(DEMO, template("demo", "local", schema="../../docs/reference/cluster.schema.json"))


@pytest.mark.parametrize(
    ("page", "made", "begin", "end"),
    [
        ("environment.md", environment.table, "tests/golden -->\n", "<!-- end of rules -->"),
        ("systems.md", matrix.table, "tests/golden -->\n", "<!-- end of the table -->"),
        ("checks.md", reference.tables, "tests/golden -->\n", "<!-- end of the tables -->"),
        (
            "../how-to/migrate-from-the-marketplace-stack.md",
            migration_table.markdown,
            "tests/golden -->\n",
            "<!-- end of the table -->",
        ),
    ],
    ids=lambda value: value if isinstance(value, str) and value.endswith(".md") else "",
)
def test_the_tables_of_the_code_are_in_their_pages(page: str, made: Callable[[], str], begin: str, end: str) -> None:
    before, mark, rest = (REFERENCE / page).read_text().partition(begin)
    _, stop, after = rest.partition(end)
    _compare(REFERENCE / page, f"{before}{mark}{made()}\n{stop}{after}")


# --- from the shapes -----

LIMITS = REPOSITORY / "gpucluster" / "node_agent" / "nccl" / "shape_limits.py"
LINE = 120
#: What a pair lacks whose bandwidth is a third of the wires'.
FABRIC = ("NCCL_IB_QPS_PER_CONNECTION", "NCCL_IB_GID_INDEX")


def _argument(value: object) -> str:
    """As ruff writes it: what is longer than a line has one of its parts on each."""
    line = f"        {value!r},\n"
    if not isinstance(value, tuple) or len(line) <= LINE:
        return line
    return "        (\n" + "".join(f"            {part!r},\n" for part in value) + "        ),\n"


def _limits_of(shape: shapes.Shape) -> str:
    wire = len(shape.rdma_devices) * (shape.rdma_link_gbps or 0) / 8
    limits = {(gate.nodes, gate.algorithm): gate.fail for gate in shape.busbw}
    settings = {name: shape.nccl_environment[name] for name in FABRIC if name in shape.nccl_environment}
    measured = {(figure.nodes, figure.algorithm): figure.gb_per_s for figure in shape.busbw_measured}
    # Only where switches join all GPUs, each has all its links to every number of others. Those of a GPU memory
    # cluster are outside of the nodes.
    switches = shape.fabric_manager or shape.memory_fabric
    nvlink = float(shape.nvlinks * shape.nvlink_gb_per_s) if switches else 0.0
    facts = (shape.name, shape.gpus, shape.gres_type, wire, shape.rdma_devices, nvlink, limits, measured, settings)
    values = "".join(map(_argument, facts))
    return f"    {shape.name!r}: ShapeLimits(\n{values}    ),\n".replace("'", '"')


def test_the_limits_of_the_agent_are_those_of_the_shapes() -> None:
    begin, end = "SHAPES: Mapping[str, ShapeLimits] = {\n", "}\n"
    before = LIMITS.read_text().partition(begin)[0]
    rows = "".join(_limits_of(shape) for shape in shapes.catalogue().values() if shape.gpus)
    _compare(LIMITS, f"{before}{begin}{rows}{end}")


# --- from the SDK -----

API_PAGE = REFERENCE / "local-cloud-api.md"
BEGIN, END = "<!-- operations: written by UPDATE_GOLDEN=1 pytest tests/golden -->", "<!-- end of operations -->"


def _pinned_sdk() -> str:
    pinned = re.search(r"^oci==(\S+)", (REPOSITORY / "requirements.lock").read_text(), re.MULTILINE)
    assert pinned is not None
    return pinned[1]


def test_the_types_of_members_are_those_of_the_sdk() -> None:
    """A newer SDK than the pinned one only has more members."""
    made = json.dumps(sdk_facts.member_kinds(), indent=1) + "\n"
    file = Path(member_types.__file__).with_suffix(".json")
    if oci.__version__ == _pinned_sdk():
        _compare(file, made)
    for kind, names in json.loads(file.read_text()).items():
        assert set(names) <= set(json.loads(made)[kind]), kind


def test_the_page_of_the_local_clouds_api_lists_its_operations(tmp_path: Path) -> None:
    before, begin, rest = API_PAGE.read_text().partition(BEGIN)
    _, end, after = rest.partition(END)
    there = {operation.place for operation in map(_of_route, sdk_facts.routes(tmp_path))}
    known = {operation.place for client in sdk_facts.CLIENTS for operation in sdk_facts.operations(client)}
    assert there <= known, "the local cloud has an operation that OCI does not have"
    if oci.__version__ == _pinned_sdk():
        _compare(API_PAGE, f"{before}{begin}\n{_operations(there)}{end}{after}")


def _of_route(route: Any) -> sdk_facts.Operation:
    return sdk_facts.Operation(route.operation, route.method, route.path)


def _operations(there: set[tuple[str, str]]) -> str:
    """For each client of the SDK: which of its operations are there, and which are not."""
    parts = []
    for client, service in sdk_facts.CLIENTS.items():
        listed = sdk_facts.operations(client)
        parts.append(f"\n## {service} (`oci.{client}`)\n")
        for title, wanted in (("There", True), ("Not there", False)):
            names = [f"`{one.name}`" for one in listed if (one.place in there) == wanted]
            if names:
                parts.append(f"\n{title} ({len(names)} of {len(listed)}): {', '.join(names)}.\n")
    return "".join(parts)


# --- for Prometheus and Grafana -----

MONITORING = REPOSITORY / "ansible" / "roles" / "monitoring" / "files"


def test_the_nominal_values_are_those_of_the_shapes_and_of_the_checks() -> None:
    _compare(MONITORING / "rules" / "nominal.yml", nominal.rules(shapes.catalogue().values()))


def _metric_tables() -> dict[str, str]:
    autoscaler = {family.name: family.documentation for family in Metrics().registry.collect()}
    others = "\n\n".join(f"### {name}\n\n{metrics.table(rows)}" for name, rows in metrics.USED.items())
    return {
        "recorded": metrics.recorded(),
        "exporter": metrics.table({name: each.help for name, each in exposition.METRICS.items()}),
        "slurm": metrics.table({name: each.help for name, each in slurm_metrics.METRICS.items()}),
        "health": metrics.table(health._HELP),
        "backup": metrics.table(schedule.METRICS),
        "drift": metrics.table(watch.METRICS),
        "logs": metrics.table(collect.METRICS),
        "standby": metrics.table(keeping.METRICS),
        "autoscaler": metrics.table(autoscaler),
        "others": others,
    }


@pytest.mark.parametrize("part", _metric_tables())
def test_the_page_of_metrics_is_that_of_the_exporters(part: str) -> None:
    page = REFERENCE / "metrics.md"
    before, mark, rest = page.read_text().partition(f"<!-- {part}: made from ")
    where, close, rest = rest.partition("-->\n")
    _, stop, after = rest.partition(f"<!-- end of {part} -->")
    assert stop
    _compare(page, f"{before}{mark}{where}{close}\n{_metric_tables()[part]}\n\n{stop}{after}")
