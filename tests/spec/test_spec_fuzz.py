"""Whatever the file holds, load() returns a spec or raises InputError: no other exception, no finding without a place.

Valid files are damaged in thousands of ways; the draws are derandomized, so a run in CI is the run at home.
"""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gpucluster.errors import InputError
from gpucluster.spec import ClusterSpec, loads, template
from tests.spec.spec_texts import KEY, LOCAL, OCI

pytestmark = pytest.mark.slow

PRIVATE = (Path(__file__).parents[1] / "golden" / "oci_private" / "cluster.yml").read_text()
BASES = [LOCAL, OCI, PRIVATE, template("demo", "local"), template("demo", "oci")]
# fmt: off
ODD = [
    "", "~", "null", "true", "false", "yes", "no", "0", "-1", "1.5", ".inf", ".nan", "1e999", "0x1F", "017",
    "1:30:00", "9" * 30, "-" + "9" * 30, "9" * 5000, "2024-01-01", "2024-13-45T99:99:99Z", "=", "<<", "!!int x",
    "!!binary AAAA", "!!python/object/apply:os.system [echo]", "!!set {a}", "!!omap [a: b]", "&a [*a]",
    "*nowhere", "&a x", "*a", "? x", "[", "]", "{", "}", "[]", "{}", "[[[[]]]]", "{a: {b: {c: d}}}", "- - - x",
    "|\n  a\n  b", ">-", "'", '"', '"\\x00"', '"\\ud800"', '"\\U0010ffff"', "\u0000", "\u2028", "\u202e",
    "\ufeff", "é", "日本語", "🦊", "\t", " \t x", "%", "@x", "`x`", "---", "...", "%YAML 1.2", "#", ": :", ":", "-",
    "?", "a: b: c", "0.0.0.0/0", "::/0", "10.0.0.0/99", "1.2.3.4.5/8", "10.77.0.0/16",
    "\u0660.\u0660.\u0660.\u0660/\u0668", "/", "//", "/..", "/" + "a" * 300, "~", "~root", "~nobody-at-all/x",
    "/dev/zero", "/proc/self/mem", ".", "..", "a" * 5000, "a\\0b", "BM.GPU4.8", "VM.Standard.E5.Flex", "all",
    "root", "ssh-ed25519", "ssh-rsa AAAA", KEY, "-----BEGIN OPENSSH PRIVATE KEY-----", "ocid1.image.oc1..x",
    "Europe/../../etc/passwd", "UTC", "/etc/passwd", "Factory",
]
# fmt: on
JUNK = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=8), st.sampled_from(ODD)),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(st.text(max_size=6), inner, max_size=3)),
    max_leaves=8,
)


@st.composite
def damaged(draw: st.DrawFn) -> str:
    """A valid file after a few accidents."""
    lines = draw(st.sampled_from(BASES)).split("\n")
    for _ in range(draw(st.integers(1, 4))):
        at = draw(st.integers(0, len(lines) - 1))
        accident = draw(st.integers(0, 8))
        key, colon, _ = lines[at].partition(":")
        if accident == 0 and len(lines) > 1:
            del lines[at]
        elif accident == 1:
            lines.insert(at, lines[draw(st.integers(0, len(lines) - 1))])
        elif accident == 2:
            other = draw(st.integers(0, len(lines) - 1))
            lines[at], lines[other] = lines[other], lines[at]
        elif accident == 3:
            lines[at] = f"{key}{colon} {draw(st.sampled_from(ODD))}"
        elif accident == 4:
            lines[at] = f"{key}{colon} {draw(st.text(max_size=20))}"
        elif accident == 5:
            lines[at] = f"{key}{colon} {json.dumps(draw(JUNK), ensure_ascii=draw(st.booleans()))}"
        elif accident == 6:
            lines[at] = draw(st.sampled_from(["", " ", "   ", "\t"])) + lines[at].lstrip()
        elif accident == 7:
            lines[at] = f"{draw(st.sampled_from(ODD))}: {lines[at].strip()}"
        else:
            middle = draw(st.integers(0, len(lines[at])))
            lines[at] = lines[at][:middle] + draw(st.sampled_from(ODD)) + lines[at][middle:]
    return "\n".join(lines)


def survives(text: str | bytes) -> None:
    spec, error = attempt(text)
    if spec is not None:
        spec.model_dump_json()
        for pool in spec.pools.values():
            assert pool.kind
    if error is not None:
        assert error.findings
        str(error).encode()
        for finding in error.findings:
            assert finding.file == "dir/cluster.yml"
            assert finding.line >= 1
            assert finding.column >= 1
            assert finding.message
            json.dumps(asdict(finding)).encode()


def attempt(text: str | bytes) -> tuple[ClusterSpec | None, InputError | None]:
    """What comes of it; any other exception is the failure that is looked for."""
    try:
        return loads(text, "dir/cluster.yml"), None
    except InputError as error:
        return None, error


quickly = settings(derandomize=True, database=None, suppress_health_check=list(HealthCheck), print_blob=False)


@settings(quickly, max_examples=2500)
@given(damaged())
def test_damaged_files(text: str) -> None:
    survives(text)


@settings(quickly, max_examples=300)
@given(st.sampled_from(BASES), st.integers(0, 5000), st.integers(0, 40), st.binary(max_size=12))
def test_damaged_bytes(base: str, at: int, cut: int, put: bytes) -> None:
    raw = base.encode()
    at %= len(raw)
    survives(raw[:at] + put + raw[at + cut :])


@settings(quickly, max_examples=200)
@given(st.one_of(st.binary(max_size=200), st.text(max_size=200)))
def test_no_file_at_all(junk: str | bytes) -> None:
    survives(junk)


@settings(quickly, max_examples=300)
@given(
    st.dictionaries(st.sampled_from([*"abc", "version", "name", "cloud", "network", "pools", "users", "slurm"]), JUNK)
)
def test_right_keys_with_anything_in_them(sections: dict[str, object]) -> None:
    survives(json.dumps({"version": 1, **sections}))
