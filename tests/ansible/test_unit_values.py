"""Values in the units of systemd that roles write: each text of the inventory goes through a filter that quotes it or
refuses it.
"""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import jinja2
import pytest
import yaml
from jinja2 import nodes

from gpucluster.errors import InputError
from gpucluster.systems import units
from tests.ansible.loading import ANSIBLE, ROLES, read
from tests.ansible.render import render

#: What quotes a value; what makes a number or a fixed word of it.
_QUOTES = {"systemd_text", "systemd_word", "systemd_argument", "systemd_bare"}
_FIXED = {"length", "int", "bool", "version"}
_FREE = ("str", "path", "raw", "list", "dict")
_UNIT = re.compile(r"^\[(Unit|Service|Socket|Timer|Path|Mount)\]$", re.MULTILINE)
HOSTILE = (
    "a%h",
    "%n",
    "50%",
    'a"b',
    "a'b",
    "a b",
    "a\\x41b",
    "$HOME",
    "${HOME}",
    ";",
    "#a",
    "é",
    "",
    "a\tb"[:1],
    "100%%",
)


def _options() -> dict[str, Any]:
    """The variables of the inventory, as argument_specs describe them."""
    found: dict[str, Any] = dict(read("vars/inventory_options.yml")["inventory_options"])
    for role in ROLES:
        if (ANSIBLE / f"roles/{role}/meta/argument_specs.yml").exists():
            specs = read(f"roles/{role}/meta/argument_specs.yml")["argument_specs"]
            found |= specs["main"].get("options") or {}
    return found


def _free(option: Mapping[str, Any]) -> bool:
    """Whether a value can be any text."""
    if option.get("choices"):
        return False
    if option.get("type") in ("list", "dict"):
        inner = option.get("options")
        kind = option.get("elements", "str")
        return any(map(_free, inner.values())) if inner else kind in _FREE
    return option.get("type", "str") in _FREE


def _names(text: str) -> set[str]:
    """The variables whose values are in what a template gives."""
    try:
        tree = jinja2.Environment(extensions=["jinja2.ext.do"]).parse(text)
    except jinja2.TemplateSyntaxError:
        return set()
    shown = {name for output in tree.find_all(nodes.Output) for each in output.nodes for name in _shown(each)}
    made: list[tuple[nodes.Node, nodes.Node]] = [(each.target, each.iter) for each in tree.find_all(nodes.For)]
    made += [(each.target, each.node) for each in tree.find_all(nodes.Assign)]
    for target, source in reversed(made):
        names = {name.name for name in target.find_all(nodes.Name)} | {getattr(target, "name", "")}
        shown |= set(_shown(source)) if shown & names else set()
    return shown


def _shown(node: nodes.Node) -> Iterator[str]:
    if isinstance(node, nodes.Filter) and node.name in _QUOTES | _FIXED:
        return
    if isinstance(node, nodes.Test | nodes.Compare | nodes.Not):
        return
    if isinstance(node, nodes.Name):
        yield node.name
    if isinstance(node, nodes.CondExpr):
        yield from _shown(node.expr1)
        yield from _shown(node.expr2) if node.expr2 else ()
        return
    for child in node.iter_child_nodes():
        yield from _shown(child)


def _strings(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        for each in value.values():
            yield from _strings(each)
    elif isinstance(value, list):
        for each in value:
            yield from _strings(each)


def _from_the_inventory() -> set[str]:
    """The variables that have a text of the inventory in them: those of the inventory, and what roles make of them."""
    found = {name for name, option in _options().items() if _free(option)}
    made: dict[str, set[str]] = {}
    for file in [*ANSIBLE.glob("group_vars/all/*.yml"), *ANSIBLE.glob("roles/*/vars/main.yml")]:
        for name, value in (yaml.safe_load(file.read_text()) or {}).items():
            made.setdefault(name, set()).update(*(_names(text) for text in _strings(value)))
    while more := {name for name, used in made.items() if used & found} - found:
        found |= more
    return found


def _units() -> Iterator[tuple[str, str]]:
    """The templates of units and of their drop-ins, in files and in the variables and tasks of roles."""
    for file in sorted([*ANSIBLE.glob("templates/*.j2"), *ANSIBLE.glob("roles/*/templates/*.j2")]):
        if _UNIT.search(file.read_text()):
            yield str(file.relative_to(ANSIBLE)), file.read_text()
    for file in sorted([*ANSIBLE.glob("roles/*/vars/*.yml"), *ANSIBLE.glob("roles/*/tasks/*.yml")]):
        for text in _strings(yaml.safe_load(file.read_text())):
            if re.search(r"\[(Unit|Service|Socket)\]\\?n", text) or _UNIT.search(text):
                yield str(file.relative_to(ANSIBLE)), text


@pytest.mark.filterwarnings("ignore:invalid escape sequence")  # in regular expressions of roles
def test_each_text_of_the_inventory_is_quoted_in_units() -> None:
    inventory = _from_the_inventory()
    assert {"gpucluster_name", "home_mount_path", "containerd_data", "docker_proxy"} <= inventory
    found = list(_units())
    assert len(found) > 30
    assert [f"{file}: {name}" for file, text in found for name in sorted(_names(text) & inventory)] == []


def _analysed(tmp_path: Path, lines: list[str]) -> list[str]:
    """What systemd reports of a unit with these lines."""
    file = tmp_path / "quoted.service"
    file.write_text("\n".join(["[Unit]", *lines, "[Service]", "Type=oneshot", "ExecStart=/bin/true", ""]))
    try:
        done = subprocess.run(
            ["systemd-analyze", "--man=no", "verify", str(file)], capture_output=True, text=True, check=False
        )
    except FileNotFoundError:
        pytest.skip("no systemd-analyze here")
    return [line for line in done.stderr.splitlines() if "quoted.service" in line]


def test_systemd_reads_each_value_without_a_complaint(tmp_path: Path) -> None:
    lines = [f"Description={units.text(value)}" for value in HOSTILE]
    lines += [f"RequiresMountsFor={units.word(f'/a/{value}')}" for value in HOSTILE]
    service = [f"Environment={units.word(f'A={value}')} {units.word(f'B={value}')}" for value in HOSTILE]
    service += [f"ExecStartPre=/bin/true {units.argument(value)}" for value in HOSTILE]
    assert _analysed(tmp_path, [*lines, "[Service]", *service]) == []
    # As they are, systemd complains about some of them: it is its real parser.
    raw = [f"Environment=A={value}" for value in HOSTILE] + [f"ExecStartPre=/bin/true {value}" for value in HOSTILE]
    assert len(_analysed(tmp_path, ["[Service]", *raw])) > 1


def test_what_a_word_is_made_of() -> None:
    assert units.word("HTTP_PROXY=http://proxy.example:3128") == "HTTP_PROXY=http://proxy.example:3128"
    assert units.word("A=p%40ss") == '"A=p%%40ss"'
    assert units.word(r'a"b\c') == '"a\\"b\\\\c"'
    assert units.argument("$HOME") == '"$$HOME"'
    assert units.argument(";") == '";"'
    assert units.text("100% of it") == "100%% of it"
    assert units.bare("/mnt/a-b_c.d") == "/mnt/a-b_c.d"


@pytest.mark.parametrize("quote", [units.text, units.word, units.argument, units.bare])
@pytest.mark.parametrize("value", ["a\nExecStart=/bin/evil", "a\r", "\x1b[31m", "a\0b", "\u2028"])
def test_a_line_break_is_refused(quote: Any, value: str) -> None:
    with pytest.raises(InputError):
        quote(value)


@pytest.mark.parametrize("value", ["a b", "$x", "a'b", "`id`", "a;b", "", "%h", 'a"'])
def test_in_the_middle_of_a_word_nothing_is_quoted(value: str) -> None:
    with pytest.raises(InputError):
        units.bare(value)


def test_docker_gets_its_proxy(tmp_path: Path) -> None:
    known = {
        "docker_data": "/local/docker",
        "docker_proxy": {"url": "http://proxy/%40x", "direct": ["10.0.0.0/16", ".x"]},
    }
    lines = render("docker", "docker.conf", known).splitlines()
    assert 'Environment="HTTP_PROXY=http://proxy/%%40x"' in lines
    assert "Environment=NO_PROXY=10.0.0.0/16,.x" in lines
    assert lines.index("[Service]") < lines.index("Environment=NO_PROXY=10.0.0.0/16,.x")
    assert _analysed(tmp_path, lines[2:]) == []
    assert "[Service]" not in render("docker", "docker.conf", {**known, "docker_proxy": {}})


def test_no_expression_has_an_escape_for_a_line_break() -> None:
    """Ansible leaves it as it is, two characters, where the expression is not in a template file."""
    found = [
        f"{file.relative_to(ANSIBLE)}: {expression}"
        for file in ANSIBLE.rglob("*.yml")
        for text in _strings(list(yaml.safe_load_all(file.read_text())))
        for expression in re.findall(r"\{\{.*?\}\}", text, re.DOTALL)
        if "regex_" not in expression and re.search(r"\\[nt]", expression)
    ]
    assert found == []


def test_nothing_is_joined_to_the_last_line_of_the_sandbox() -> None:
    """Jinja takes the newline from the end of what is included, and systemd ignores a line that it can't read."""
    including = [file for file in (ANSIBLE / "roles").glob("*/templates/*") if "'sandbox.j2'" in file.read_text()]
    assert len(including) > 10
    for file in including:
        _before, after = file.read_text().split("{% include 'sandbox.j2' %}")
        assert after in ("", "\n") or after.startswith("\n\n"), file
