"""Tables and badges of pages."""

from gpucluster.pages.colours import Tone
from gpucluster.pages.tables import badge, table
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
