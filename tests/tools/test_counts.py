"""The counts of words and lines, of a small tree."""

from __future__ import annotations

from pathlib import Path

from tools import counts

TREE = {
    "gpucluster/one.py": (
        'class Node:\n    """It is no pod."""\n\n\n'
        "def f(found: int) -> int:\n    # says what it is\n    done = found\n    return done\n"
    ),
    "gpucluster/two.py": "class Node: ...\n\n\nclass Other: ...\n",
    "tests/test_one.py": "class Node: ...\n",
    "ansible/main.yml": "- name: a task\n\n- name: another\n",
    "docs/page.md": "This is no number. It says so, and says why.\n",
}


def test_a_small_tree(tmp_path: Path) -> None:
    for name, text in TREE.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    seen = counts.count(tmp_path, [Path(name) for name in TREE])
    assert seen.lines == {"product": 8, "tests": 1, "Ansible": 2}
    assert seen.repeated == {"Node": ["gpucluster/one.py", "gpucluster/two.py"]}, "classes of tests do not count"
    assert seen.places["participles"] == ["gpucluster/one.py:5 found", "gpucluster/one.py:7 done"]
    assert seen.places["is-no"] == ["gpucluster/one.py:2", "docs/page.md:1"]
    assert seen.places["says"] == ["gpucluster/one.py:6", "docs/page.md:1", "docs/page.md:1"]
    assert counts.report(seen)[3] == "class names that occur more than once in the product: 1"
