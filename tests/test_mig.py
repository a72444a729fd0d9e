"""What GPUs can be divided into: NVIDIA's tables, and divisions that fit or not."""

from __future__ import annotations

import pytest

from gpucluster import mig, shapes

GPUS = list(mig.catalogue().values())
H100 = mig.catalogue()["H100-80GB"]


def test_shapes_name_gpus_that_are_there_and_all_of_them() -> None:
    named = {shape.mig_gpu for shape in shapes.catalogue().values() if shape.mig_gpu}
    assert named == set(mig.catalogue())
    assert all(shape.has_nvidia_gpus for shape in shapes.catalogue().values() if shape.mig_gpu)


@pytest.mark.parametrize("gpu", GPUS, ids=lambda gpu: gpu.name)
def test_each_profile_fits_as_often_as_the_guide_states_and_not_once_more(gpu: mig.MigGpu) -> None:
    for profile in gpu.profiles.values():
        assert len(gpu.place({profile.name: profile.most})) == profile.most
        with pytest.raises(mig.DoesNotFit):
            gpu.place({profile.name: profile.most + 1})


@pytest.mark.parametrize("gpu", [gpu for gpu in GPUS if gpu.compute == 7], ids=lambda gpu: gpu.name)
def test_the_numbers_are_those_of_the_guide(gpu: mig.MigGpu) -> None:
    """ "Number of Instances Available", in the order of its tables."""
    assert [profile.most for profile in gpu.profiles.values()] == [7, 1, 4, 3, 2, 1, 1]


@pytest.mark.parametrize("gpu", GPUS, ids=lambda gpu: gpu.name)
def test_the_name_of_a_profile_states_its_slices(gpu: mig.MigGpu) -> None:
    for profile in gpu.profiles.values():
        assert profile.name.startswith(f"{profile.compute}g.")


# Divisions of the User Guide's examples, and others that the driver makes.
GOOD = [
    {"1g.10gb": 7},
    {"3g.40gb": 2},
    {"3g.40gb": 1, "2g.20gb": 1, "1g.10gb": 2},
    {"2g.20gb": 1, "1g.10gb": 5},
    {"4g.40gb": 1, "3g.40gb": 1},
    {"1g.20gb": 4},
    {"2g.20gb": 3, "1g.20gb": 1},
    {"1g.10gb+me": 1, "1g.10gb": 6},
]
BAD = [
    ({"1g.10gb": 8}, "at most 7 x 1g.10gb, and not 8"),
    ({"3g.40gb": 1, "4g.40gb": 1, "1g.10gb": 1}, "need 8 slices of compute, and H100-80GB has 7"),
    ({"3g.40gb": 2, "1g.10gb": 1}, "need 9 slices of memory, and H100-80GB has 8"),
    ({"7g.80gb": 1, "1g.10gb": 1}, "need 8 slices of compute"),
    ({"1g.10gb+me": 2}, "at most 1 x 1g.10gb+me"),
    ({"1g.5gb": 1}, "has no profile 1g.5gb"),
]


@pytest.mark.parametrize("wanted", GOOD, ids=str)
def test_a_division_that_fits_overlaps_nowhere(wanted: dict[str, int]) -> None:
    placed = H100.place(wanted)
    slices = [
        slice_ for profile, start in placed
        for slice_ in range(start, start + H100.profiles[profile].size)
    ]  # fmt: skip
    assert len(slices) == len(set(slices))
    assert set(slices) <= set(range(H100.memory))
    assert all(start in H100.profiles[profile].starts for profile, start in placed)
    assert {profile: sum(each.profile == profile for each in placed) for profile in wanted} == wanted


@pytest.mark.parametrize(("wanted", "words"), BAD, ids=str)
def test_one_that_does_not_fit_is_refused_with_the_reason(wanted: dict[str, int], words: str) -> None:
    with pytest.raises(mig.DoesNotFit, match=words.replace("+", r"\+")):
        H100.place(wanted)


def test_enough_slices_are_not_room_where_places_overlap() -> None:
    """No GPU of today: each division with few enough slices has room on those."""
    profiles = {"2g": mig.MigProfile("2g", 2, 2, (1,), 1), "1g": mig.MigProfile("1g", 1, 1, (1, 2), 2)}
    with pytest.raises(mig.DoesNotFit, match=r"no room .* fixed slices of memory \(2g at 1, 1g at 1 or 2\)"):
        mig.MigGpu("X", 4, 4, profiles).place({"2g": 1, "1g": 2})
