"""The frame of a page: its head, its style, its sections."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from importlib import resources

from markupsafe import Markup

from gpucluster.pages import colours
from gpucluster.pages.markup import templates
from gpucluster.pages.units import utc

_PACKAGE = "gpucluster.pages"
# Nothing is loaded, sent or run; only the style inside of the file applies.
POLICY = "default-src 'none'; style-src 'unsafe-inline'; img-src data:; base-uri 'none'; form-action 'none'"


@dataclass(frozen=True)
class Section:
    """One section.

    Args:
        id: its name in links, unique in the page: letters, digits and `-`.
    """

    id: str
    title: str
    body: Markup


def page(
    title: str,
    sections: Sequence[Section],
    *,
    kind: str,
    made_at: float,
    made_by: str,
    subtitle: str = "",
    lead: Markup | str = "",
) -> str:
    """A whole page, as the text of one file.

    Args:
        kind: what this page is, such as `overview`. It is in the file, for `is_page`.
        made_at: seconds since 1970.
        made_by: the program with its version.
        lead: what stands above the sections.
    """
    return (
        templates(_PACKAGE)
        .get_template("page.html.j2")
        .render(
            title=title,
            subtitle=subtitle,
            lead=lead,
            sections=sections,
            kind=kind,
            made_at=utc(made_at),
            made_by=made_by,
            policy=POLICY,
            style=_style(),
        )
    )


def is_page(text: str, kind: str) -> bool:
    """Whether the beginning of a file shows that `page` has made it, of this kind."""
    return _mark(kind) in text[:2000]


def _mark(kind: str) -> str:
    return f'<meta name="gpucluster-page" content="{kind}">'


def _style() -> Markup:
    """The file's own style. It is ours, and has no text of anyone else."""
    css = (resources.files(_PACKAGE) / "page.css").read_text(encoding="utf-8")
    lines = "".join(
        f".c{number}{{stroke:var(--line-{number})}}.f{number}{{fill:var(--line-{number})}}"
        for number in range(1, colours.LINES + 1)
    )
    heat = "".join(f".h{level}{{fill:var(--heat-{level})}}" for level in range(colours.HEAT_LEVELS))
    tones = "".join(f".{tone}{{color:var(--{tone});background:var(--{tone}-fill)}}" for tone in colours.Tone)
    light, dark = colours.variables(dark=False), colours.variables(dark=True)
    schemes = (
        f":root{{color-scheme:light dark;{light}}}@media screen and (prefers-color-scheme:dark){{:root{{{dark}}}}}"
    )
    return Markup(schemes + css + tones + lines + heat)  # noqa: S704 - no text of others is in it
