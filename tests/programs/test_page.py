"""How the page is read."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.programs.page import PAGE, section

TEXT = """# Programs

## One

```sh
pip install one
```

```python
# one.py
print(1)
```

```sh
python one.py
```

    not this

## Two

```sh
# two.sbatch
#!/bin/sh
srun two
```
"""


@pytest.fixture
def page(tmp_path: Path) -> Path:
    file = tmp_path / "page.md"
    file.write_text(TEXT)
    return file


def test_a_section_has_its_files_without_the_lines_that_name_them_and_its_commands_in_order(page: Path) -> None:
    found = section("One", page)
    assert found.files == {"one.py": "print(1)\n"}
    assert found.commands == ("pip install one\n", "python one.py\n")


@pytest.mark.parametrize(("title", "why"), [("Three", "no section 'Three'"), ("Two", "has no commands")])
def test_what_would_run_nothing_is_an_error(page: Path, title: str, why: str) -> None:
    with pytest.raises(AssertionError, match=why):
        section(title, page)


def test_every_section_with_code_is_run_by_a_test() -> None:
    folder = Path(__file__).parents[1] / "e2e"
    text = "\n".join((folder / name).read_text() for name in ("test_main_path.py", "test_programs.py"))
    parts = re.split(r"^## ", PAGE.read_text(), flags=re.MULTILINE)[1:]
    titles = [part.partition("\n")[0] for part in parts if "\n```" in part]
    assert len(titles) > 5
    assert [title for title in titles if f'"{title}"' not in text] == []
