#!/usr/bin/python
"""Container images that a host pulls in advance.

Instead of plain tasks: a task that lists what the runtime has, and one for each image, on hosts of which most need
none: one task here, whatever their number.
"""

from __future__ import annotations

import hashlib
import os
import re
from pathlib import Path
from typing import Any

from ansible.module_utils.basic import AnsibleModule

DOCUMENTATION = """
module: gpucluster_images
short_description: Pull container images in advance
description:
  - Pulls the images that the runtime does not have. An image that exists is not pulled again, so a tag that moved is
    not followed; pull it by hand, or name a digest.
options:
  program: {description: The runtime's client and its first arguments., type: list, elements: str, required: true}
  images: {description: Names of images., type: list, elements: str, required: true}
  archives:
    description: A directory with each image as a file as well, for others to load. Files of other images are removed.
    type: path
  timeout: {description: Seconds for one image., type: int, default: 3600}
author: gpucluster
"""

EXAMPLES = """
- name: Pull the images
  gpucluster_images:
    program: [docker]
    images: ["registry.example/team/training:2.1"]
"""

RETURN = """
pulled: {description: Images that were pulled., returned: always, type: list}
saved: {description: Archives that were written., returned: always, type: list}
removed: {description: Archives of images that are no longer listed., returned: always, type: list}
"""

# The exit code of `timeout`.
TIMED_OUT = 124


def archive_name(image: str) -> str:
    """A file name for an image; two images never share one."""
    plain = re.sub(r"[^A-Za-z0-9._-]+", "_", image)[:100]
    return f"{plain}-{hashlib.sha256(image.encode()).hexdigest()[:8]}.tar"


def surplus(folder: Path, images: list[str]) -> list[Path]:
    """Archives of other images, and the remains of an interrupted run."""
    kept = {archive_name(image) for image in images}
    ours = re.compile(r"\..*\.tar\.part|.*-[0-9a-f]{8}\.tar")
    found = sorted(folder.iterdir()) if folder.is_dir() else []
    return [file for file in found if ours.fullmatch(file.name) and file.name not in kept]


class Runtime:
    """The client of a container runtime."""

    def __init__(self, module: AnsibleModule) -> None:
        self.module = module
        self.argv: list[str] = module.params["program"]

    def call(self, *words: str) -> tuple[int, str]:
        """Run it; returns its exit code and its last lines."""
        limit = ["timeout", str(self.module.params["timeout"])]
        code, out, err = self.module.run_command([*limit, *self.argv, *words])
        return code, " | ".join((err.strip() or out.strip()).splitlines()[-2:])

    def has(self, image: str) -> bool:
        """Whether the image exists on this host."""
        return self.call("image", "inspect", image)[0] == 0

    def pull(self, image: str) -> None:
        """Pull it, or fail with its name."""
        code, words = self.call("pull", "--quiet", image)
        if code != 0:
            why = f"it took more than {self.module.params['timeout']} s" if code == TIMED_OUT else words
            self.module.fail_json(
                msg=f"the image {image} could not be pulled: {why}. Check its name in containers.pull. An image of a "
                "private registry can't be pulled in advance: the users who have credentials log in and pull it"
            )

    def save(self, image: str, target: Path) -> None:
        """Write it to a file, which gets its name when it is complete."""
        target.parent.mkdir(parents=True, exist_ok=True)
        part = target.with_name(f".{target.name}.part")
        code, words = self.call("save", "--output", str(part), image)
        if code != 0:
            part.unlink(missing_ok=True)
            self.module.fail_json(msg=f"the image {image} could not be written to {target}: {words}")
        part.chmod(0o644)
        os.replace(part, target)


def main() -> None:
    """Entry point."""
    spec: dict[str, Any] = {
        "program": {"type": "list", "elements": "str", "required": True},
        "images": {"type": "list", "elements": "str", "required": True},
        "archives": {"type": "path"},
        "timeout": {"type": "int", "default": 3600},
    }
    module = AnsibleModule(argument_spec=spec, supports_check_mode=True)
    runtime = Runtime(module)
    folder = Path(module.params["archives"]) if module.params["archives"] else None
    pulled, saved = [], []
    for image in module.params["images"]:
        if not runtime.has(image):
            pulled.append(image)
            if not module.check_mode:
                runtime.pull(image)
        target = folder / archive_name(image) if folder else None
        if target and not target.exists():
            saved.append(str(target))
            if not module.check_mode:
                runtime.save(image, target)
    removed = surplus(folder, module.params["images"]) if folder else []
    if not module.check_mode:
        for file in removed:
            file.unlink()
    changed = bool(pulled or saved or removed)
    module.exit_json(changed=changed, pulled=pulled, saved=saved, removed=[str(file) for file in removed])


if __name__ == "__main__":
    main()
