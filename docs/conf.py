"""The documentation site, as `make docs` builds it: the Markdown files of docs/ and of the root, which link each other.

Sphinx reads this file. Nothing on a page comes from another server, so that the site works without a network.
"""

from __future__ import annotations

from typing import Any

project = "gpucluster"
html_title = "gpucluster"
root_doc = "docs/index"
extensions = ["myst_parser", "sphinx_copybutton"]
myst_heading_anchors = 4
# The sources are below the root of the repository, because links lead from docs/ to other files of it.
include_patterns = ["docs/**", "README.md", "README.ja.md", "CONTRIBUTING.md", "CHANGELOG.md", "SECURITY.md"]
# Folders without pages, which it would search.
exclude_patterns = [".*", "ansible", "benchmarks", "dist", "gpucluster", "inventories", "terraform", "tests", "tools"]

html_theme = "furo"
html_static_path = ["site_static"]
html_css_files = ["tables.css"]
html_copy_source = False
html_show_copyright = False
html_show_sphinx = False
# The page that one opens; the pages have the paths of their sources.
html_extra_path = ["site_root"]


def setup(app: Any) -> dict[str, bool]:
    """Called by Sphinx."""
    app.connect("source-read", _list_decisions)
    return {"parallel_read_safe": True, "parallel_write_safe": True}


def _list_decisions(_app: Any, page: str, source: list[str]) -> None:
    """Put each decision below the table of decisions, which is a plain table for readers of the files."""
    if page == "docs/adr/README":
        source[0] += "\n```{toctree}\n:hidden:\n:glob:\n\n[0-9]*\n```\n"
