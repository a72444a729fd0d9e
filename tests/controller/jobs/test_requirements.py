"""Which requirements of a job the controller can see, and which only the user's job."""

from __future__ import annotations

import json
import os
from pathlib import Path

from tests.controller.jobs.data_place import Place


def test_what_the_controller_can_see_of_requirements(place: Place) -> None:
    own = Path(place.owner.home)
    image, text, secret, empty = (own / name for name in ("a.sqsh", "text.sqsh", "secret", "empty"))
    image.write_bytes(b"hsqs and more")
    text.write_text("text")
    secret.write_text("x")
    secret.chmod(0o600)
    empty.mkdir()
    for file in (image, text):
        os.chown(file, place.owner.uid, place.owner.gid)
    os.mkfifo(own / "pipe")
    (own / "loop").symlink_to("loop")
    found = place.states(
        ("container image", str(image)), ("container image", str(text)), ("container image", f"{own}/none"),
        ("container image", "registry.example#org/tool:1.0"), ("container image", str(own / "pipe")),
        ("data", str(secret)), ("data", str(empty)), ("data", f"{own}/o'brien \"x\"\n"), ("data", "/mnt/localdisk/x"),
        ("data", str(own / "loop")), ("place", f"{own}/new"), ("place", f"{place.share}/x"), ("program", "mpirun"),
        ("place", f"{own}/no/such"), ("data", ""), ("container image", ""),
    )  # fmt: skip
    assert [state for state, _ in found] == [
        "met", "not met", "not met", "at the start", "not met", "not met", "not met", "not met", "at the start",
        "not met", "met", "not met", "at the start", "not met", "not met", "not met",
    ]  # fmt: skip
    said = [message for _, message in found]
    assert said[1] == "is not a squashfs image"
    assert said[2] == "does not exist"
    assert said[5] == "can't be read by the user"
    assert said[6] == "is an empty folder"
    assert "on each node" in said[12]
    assert json.dumps(said)
