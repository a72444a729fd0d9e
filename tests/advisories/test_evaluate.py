"""What is said of a version: of a project's own, and of a distribution's package."""

from __future__ import annotations

from datetime import date

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpucluster.advisories import table
from gpucluster.advisories.evaluate import (
    HostVersions,
    KnownFault,
    Standing,
    evaluate,
    faults,
    host_versions,
    sentence,
    warnings,
)
from gpucluster.advisories.evaluate import InstalledVersion as Installed

TODAY = date(2026, 11, 28)


def of(product: str, version: str, package: str = "", system: str = "debian-12") -> list[KnownFault]:
    return list(faults(Installed(product, version, package), system, TODAY))


@pytest.mark.parametrize(
    ("version", "expected"),
    [
        ("25.05.8", "versions: {slurm: 25.05.9}"),
        ("", ""),
        ("25.05.9", ""),
        ("25.11.7", "versions: {slurm: 25.11.8}"),
        ("v25.11.7-1", "versions: {slurm: 25.11.8}"),
        ("25.11.8", ""),
        ("25.11.8-1", ""),
        ("25.11.10", ""),
        ("26.05.3", "versions: {slurm: 26.05.4}"),
        ("26.05.0rc1", "versions: {slurm: 26.05.4}"),
        ("26.05.5", ""),
        ("24.11.5", "24.11 gets no fix: choose a newer"),
        ("23.11.11", "23.11 gets no fix: choose a newer"),
        ("26.11.0", ""),
    ],
)
def test_what_is_known_of_a_version_of_slurm(version: str, expected: str) -> None:
    said = " ".join(warnings("slurm", version, TODAY))
    assert expected in said
    assert bool(expected) == bool(said)
    if said:
        assert "2026-09 (CVE-2026-65107 and 7 others)" in said


@pytest.mark.parametrize(
    ("version", "today", "ended"),
    [
        ("25.05.9", TODAY, False),
        ("25.05.9", date(2026, 12, 1), True),
        ("24.11.7", TODAY, True),
        ("26.05.5", TODAY, False),
        ("26.11.0", TODAY, False),
    ],
)
def test_support_ends_with_its_month(version: str, today: date, ended: bool) -> None:
    said = " ".join(warnings("slurm", version, today))
    assert ("support of" in said) is ended


@pytest.mark.parametrize(
    ("version", "newest", "names"),
    [
        # As Debian's changelog states: nothing, all but the last one, all that it has fixed.
        ("22.05.8-4", Standing.KNOWN, {"CVE-2023-41914", "CVE-2023-49933", "CVE-2025-43904"}),
        ("22.05.8-4+deb12u2", Standing.KNOWN, {"CVE-2025-43904"}),
        ("22.05.8-4+deb12u3", Standing.ASK, set()),
        ("22.05.8-4+deb12u10", Standing.ASK, set()),
    ],
)
def test_a_package_of_debian_is_judged_by_its_own_version(version: str, newest: Standing, names: set[str]) -> None:
    found = of("slurm", version, "slurmd")
    known = {fault.names[0] for fault in found if fault.standing is Standing.KNOWN}
    assert known == names
    asked = [fault for fault in found if fault.standing is Standing.ASK]
    # Of September 2026 nothing is known of Debian's package.
    assert [fault.names[0] for fault in asked] == ["CVE-2026-65107", "CVE-2024-42511"]
    assert asked[0].action == f"Ask the distribution whether slurmd {version} has the fix"
    assert all(fault.names for fault in found)
    assert newest in {fault.standing for fault in found}


def test_another_distribution_is_asked_about_what_debian_has_fixed() -> None:
    found = of("slurm", "22.05.8-4+deb12u3", "slurmd", system="ubuntu-24")
    assert {fault.standing for fault in found} == {Standing.ASK}
    assert "CVE-2025-43904" in {fault.names[0] for fault in found}


def test_a_package_of_a_version_that_never_had_it_is_not_asked_about() -> None:
    assert of("kernel", "7.0.9-1", "linux") == []
    assert {fault.names[0] for fault in of("kernel", "6.12.90-1", "linux")} == {"CVE-2026-43500"}


@pytest.mark.parametrize(
    ("product", "version", "names"),
    [
        ("containerd", "1.7.26", {"CVE-2026-53488", "CVE-2025-64329", "CVE-2024-25621", "CVE-2024-40635"}),
        ("containerd", "1.7.28", {"CVE-2026-53488", "CVE-2026-46680", "CVE-2025-64329", "CVE-2024-25621"}),
        ("containerd", "2.1.9", {"CVE-2026-46680"}),
        ("containerd", "2.3.4", {"CVE-2026-53495"}),
        ("containerd", "2.2.9", set()),
        ("containerd", "2.4.0", set()),
        ("runc", "1.4.0-rc.2", {"CVE-2026-41579", "CVE-2025-31133"}),
        ("runc", "1.4.0-rc.3", {"CVE-2026-41579"}),
        ("runc", "1.5.0-rc.2", {"CVE-2026-41579"}),
        ("runc", "1.5.0", set()),
        ("runc", "1.0.0-rc92", {"CVE-2026-41579", "CVE-2025-31133", "CVE-2024-45310"}),
        ("nvidia-container-toolkit", "1.18.0", {"CVE-2026-24260"}),
        ("nvidia-container-toolkit", "1.20.0", set()),
        ("nvidia-driver", "580.159.03", set()),
        ("nvidia-driver", "580.95.05", {"CVE-2026-24187", "CVE-2025-33219"}),
        ("kubernetes", "v1.24.3", {"CVE-2025-13281", "CVE-2025-5187", "CVE-2024-10220"}),
        ("kubernetes", "v1.36.4", set()),
        ("enroot", "1.0.0", set()),
        ("unknown", "1.0", set()),
    ],
)
def test_release_lines_have_their_own_fixes(product: str, version: str, names: set[str]) -> None:
    assert {fault.names[0] for fault in of(product, version)} == names


def test_a_line_without_a_fix_names_the_next_version_with_one() -> None:
    found = {fault.names[0]: fault for fault in of("nvidia-driver", "570.211.01")}
    assert found["CVE-2026-24187"].fixed == ""
    assert "install 580.159.03 or later" in found["CVE-2026-24187"].action


def test_what_is_sure_comes_first() -> None:
    installed = [
        Installed("kernel", "6.1.192-2", "linux"), Installed("slurm", "25.11.7"), Installed("runc", "broken"),
    ]  # fmt: skip
    hosts = {"compute-1": HostVersions("debian-12", installed), "compute-2": HostVersions("", [])}
    found = evaluate(hosts, TODAY)
    assert [fault.standing for fault in found["compute-1"]] == [Standing.KNOWN, *[Standing.ASK] * 3]
    assert found["compute-2"] == ()
    assert sentence(found["compute-1"][0]).startswith("Slurm 25.11.7 has known vulnerabilities of 2026-09")


@given(st.text(max_size=30), st.text(max_size=30), st.sampled_from(table.PRODUCTS))
def test_no_version_is_an_error(version: str, package: str, product: str) -> None:
    for fault in of(product, version, package):
        assert sentence(fault)
        assert fault.version == version


def test_each_advisory_concerns_something_and_its_fixed_versions_are_without_it() -> None:
    for product in table.PRODUCTS:
        for advisory in table.advisories(product):
            assert not any(advisory.concerns(fixed) for fixed in advisory.fixed.values()), advisory.names
            first = next(iter(advisory.introduced.values()), "0.1")
            assert advisory.concerns(first), advisory.names
            assert advisory.what[0].islower() or advisory.what[0].isdigit()
            assert not advisory.what.endswith(".")
            assert f"{table.searched():%Y-%m}" >= advisory.published


def test_no_number_is_in_two_advisories() -> None:
    names = [name for product in table.PRODUCTS for advisory in table.advisories(product) for name in advisory.names]
    assert len(names) == len(set(names))


@pytest.mark.parametrize(
    "change",
    [
        {"fixed": {"25.11": "26.05.4"}},
        {"fixed": {"25.11": "25.11.8", "25.05": "25.05.9"}},
        {"published": "September"},
        {"source": "somewhere"},
        {"product": "vi"},
        {"remark": "more"},
    ],
)
def test_a_wrong_entry_of_the_table_is_refused(change: dict[str, object]) -> None:
    good = {
        "names": ["CVE-1"], "product": "slurm", "published": "2026-09", "what": "x", "fixed": {"25.11": "25.11.8"},
        "source": "https://example.com",
    }  # fmt: skip
    table.Advisory.model_validate(good)
    with pytest.raises(ValueError, match="validation error"):
        table.Advisory.model_validate({**good, **change})


def test_a_host_that_denies_all_modules_of_a_fault_does_not_have_it() -> None:
    rows = [{"product": "kernel", "version": "6.12.60", "package": ""}]
    titles = {}
    for denied in ([], ["esp4"], ["esp4", "esp6"], ["esp4", "esp6", "rxrpc", "algif_aead"]):
        host = host_versions({"system": "debian-12", "installed": rows, "denied": denied})
        titles[len(denied)] = {fault.title for fault in host.faults(TODAY)}
    assert titles[0] == titles[1] == {"CVE-2026-31431", "CVE-2026-43284", "CVE-2026-43500"}
    assert titles[2] == {"CVE-2026-31431", "CVE-2026-43500"}
    assert titles[4] == set()
    # An agent that is older than the command does not know the word.
    assert host_versions({"system": "debian-12", "installed": rows}).denied == frozenset()
