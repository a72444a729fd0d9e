"""Where images lie: a directory of root's own on a share that is mounted."""

from __future__ import annotations

import json
import os
import pwd

import pytest

from tests.controller.images.image_site import USER, Controller

pytestmark = [pytest.mark.skipif(os.geteuid() != 0, reason="the program is root's"), pytest.mark.slow]


def test_a_directory_of_another_user_is_not_used(controller: Controller) -> None:
    controller.images.parent.mkdir()
    os.chown(controller.images.parent, pwd.getpwnam(USER).pw_uid, -1)
    status, answer, _ = controller.fetch()
    assert (status, "only root can write to" in answer["error"]["message"]) == (1, True)


def test_a_share_that_is_not_mounted_is_not_written_to(controller: Controller) -> None:
    config = controller.folder / "images.json"
    config.write_text(json.dumps({**json.loads(config.read_text()), "share": str(controller.folder / "share")}))
    assert "is not mounted" in controller.fetch()[1]["error"]["message"]
