"""Tables and badges of pages."""

from gpucluster.pages.colours import Tone
from gpucluster.pages.tables import badge, figures, table
from tests.pages.reading import read


def test_a_badge_shows_its_state_in_words_and_in_form() -> None:
    shown = {tone: read(badge(tone, tone)).all("span")[0].text for tone in Tone}
    assert all(tone in text for tone, text in shown.items())
    assert len({text.removesuffix(tone) for tone, text in shown.items()}) == len(Tone)


def test_a_long_table_states_what_is_left_out() -> None:
    html = table("Nodes", ["Node"], [[f"gpu-{each}"] for each in range(30)], most=10, more="See sinfo.")
    assert len(read(html).all("tr")) == 11
    assert "20 more are not shown. See sinfo." in html
    assert "None." in table("Nodes", ["Node"], [])


def test_short_names_are_not_broken_at_their_hyphen() -> None:
    html = table("Nodes", ["Node"], [["compute-1"], ["compute-of-a-very-long-name-1"]])
    assert [each.attributes.get("class") for each in read(html).all("th") if each.text != "Node"] == ["short", None]


def test_figures_stand_before_everything_else() -> None:
    shown = read(figures([("Needs attention", "0"), ("Jobs", "2 running")]))
    assert [each.text for each in shown.all("dt")] == ["Needs attention", "Jobs"]
    assert [each.text for each in shown.all("dd")] == ["0", "2 running"]
