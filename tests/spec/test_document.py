"""The YAML of cluster.yml: what is not text, not YAML, or more than YAML should be."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from gpucluster.errors import InputError
from gpucluster.spec import document, load, loads
from tests.spec.faults import findings, reported
from tests.spec.spec_texts import LOCAL, MARK

# id: (what stands in LOCAL, what stands there instead with § at the error, path, words)
ROWS: dict[str, tuple[str, str, str, str]] = {
    "tab": ("    count: 2", "  §\tcount: 2", "", "a tab in the indentation. YAML requires spaces"),
    "tag": ("count: 2", "count: §!!int 2", "pools.compute.count", "tags are not supported"),
    "python tag": ("name: demo", "name: §!!python/object/apply:os.system [echo]", "name", "tags are not supported"),
    "open quote": ("timezone: UTC", 'timezone: "UTC', "", "a quote that is never closed"),
    "colon": ("name: demo", "name: a§: b", "", "a `:` that is not allowed here"),
    "indentation": ("    count: 2", "   §count: 2", "", "indentation does not match"),
    "second document": ("software:", "§---\nsoftware:", "", "a second document"),
    "unknown alias": ("count: 2", "count: §*two", "", "the alias *two has no anchor"),
    "alias of itself": ("    count: 2", "    count: &a [§*a]", "", "is inside the value that it refers to"),
    "anchor twice": ("count: 2", "count: &a 2\n    max_count: §&a 2", "", "the anchor &a is already defined"),
    "control character": ("name: demo", "name: de§\x07mo", "", "an invisible character: U+0007"),
    "escaped control character": ("name: demo", 'name: §"de\\0mo"', "name", "an invisible character: U+0000"),
    "escaped surrogate": ("name: demo", 'name: §"\\ud800"', "name", "an invisible character: U+D800"),
    "deep": ("name: demo", "name: " + "[" * 16 + f"{MARK}[[" + "]" * 18, "", "nested more than 16 levels deep"),
    "at sign": ("name: demo", "name: §@demo", "", "can't begin a value. Put the text in quotes"),
}  # fmt: skip


@pytest.mark.parametrize("row", ROWS.values(), ids=ROWS.keys())
def test_one_fault_is_told_once_and_at_its_place(row: tuple[str, str, str, str]) -> None:
    reported(row)


def test_words_that_yaml_1_1_would_misread() -> None:
    text = LOCAL.replace("full_name: Alice Example", "full_name: no").replace("  cpu:", "  off:")
    spec = loads(text)
    assert spec.users.people[0].full_name == "no"
    assert list(spec.pools) == ["compute", "off"]


def test_aliases_are_followed() -> None:
    text = LOCAL.replace("  compute:\n", "  compute: &gpu\n").replace("users:\n", "  more: *gpu\nusers:\n")
    spec = loads(text)
    assert spec.pools["more"].model_dump() == {
        **spec.pools["compute"].model_dump(),
        "default": False,
        "partition": "more",
    }


def test_a_byte_order_mark_and_windows_line_ends_do_no_harm() -> None:
    raw = b"\xef\xbb\xbf" + LOCAL.replace("\n", "\r\n").encode()
    assert loads(raw) == loads(LOCAL)


def test_null_is_as_if_it_was_not_given() -> None:
    text = LOCAL.replace("  provider: local", "  provider: local\n  availability_domain: null\n  compartment_id: ~")
    assert loads(text + "ssh: {public_key_file: null}\n").ssh.public_key is None


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "the file is empty"),
        ("# nothing\n", "the file is empty"),
        ("---\n...\n", "the file is empty"),
        ("just text", "must contain keys with values"),
        ("- a\n- b\n", "must contain keys with values"),
        ("42", "must contain keys with values"),
        ("[", "not YAML"),
        ("{a: b", "a mapping that is never closed"),
        ("a: [b\n", "a list that is never closed"),
        ("%YAML 9.9\n---\na: b\n", "not YAML"),
        (b"\xff\xfe\x00\x00", "not UTF-8: byte 0xff"),
        (b"a: b\n\nc: \xe4\n", "not UTF-8: byte 0xe4"),
        ("a: " + "x" * document.MAX_BYTES, "the file is larger than 256 KiB"),
        ("[" * 5000, "nested more than"),
        ("{a: " * 5000, "nested more than"),
        ("- " * 5000, "nested more than"),
        ("? " * 5000, "nested more than"),
    ],
)
def test_no_cluster_file_at_all(text: str | bytes, words: str) -> None:
    found = findings(text)
    assert any(words in one[3] for one in found)


def test_the_place_of_a_wrong_byte() -> None:
    assert findings(b"a: b\n\nc: x\xe4\n")[0][:2] == (3, 5)


def test_aliases_that_would_explode() -> None:
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x, x]"]
    lines += [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 10)}]" for n in range(1, 10)]
    ((_, _, _, words),) = findings("\n".join(lines))
    assert "too large: more than 20000 values. Use fewer aliases" in words


def test_a_file_is_read_only_as_far_as_it_may_be_large(tmp_path: Path) -> None:
    file = tmp_path / "cluster.yml"
    with file.open("wb") as stream:
        stream.truncate(10**10)  # a hole: it must not be read whole
    with pytest.raises(InputError) as caught:
        load(file)
    assert "larger than 256 KiB" in str(caught.value)


def test_a_pipe_is_not_read(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "cluster.yml")
    with pytest.raises(InputError, match="not a regular file"):
        load(tmp_path / "cluster.yml")
