#!/usr/bin/python
"""The public key of a package repository, accepted by its fingerprint.

Instead of plain tasks: `get_url` accepts a key by the checksum of its file, which changes with each new expiry date;
this one by the fingerprint, and fetches nothing where it is right.
"""

from __future__ import annotations

import os
import tempfile
import urllib.error
import urllib.request
from pathlib import Path

from ansible.module_utils.basic import AnsibleModule

DOCUMENTATION = """
module: gpucluster_repository_key
short_description: The public key of a package repository, accepted by its fingerprint
description:
  - Downloads the key and stores it, if all keys in it have the expected fingerprint. A key that is stored already and
    has it is not downloaded again. The proxy of the environment is used.
options:
  url: {description: Where the repository publishes its key., type: str, required: true}
  fingerprint: {description: "40 hexadecimal digits, without spaces.", type: str, required: true}
  path: {description: The file., type: path, required: true}
  setting: {description: Where cluster.yml names the repository., type: str, required: true}
author: gpucluster
"""

EXAMPLES = """
- name: Trust Docker's repository
  gpucluster_repository_key:
    url: https://download.docker.com/linux/centos/gpg
    fingerprint: 060A61C51B558A7F742B77AAC52FEB6B621E9F35
    path: /etc/pki/rpm-gpg/gpucluster-docker
    setting: containers.docker_repository
"""

RETURN = """
path: {description: The file., returned: always, type: str}
"""

MAX_BYTES = 1024 * 1024
SECONDS = 60


def fingerprints(module: AnsibleModule, file: Path) -> list[str]:
    """Those of the primary keys in a file; none if it has no key."""
    with tempfile.TemporaryDirectory() as home:
        argv = ["gpg", "--homedir", home, "--batch", "--with-colons", "--show-keys", str(file)]
        code, out, _err = module.run_command(argv)
    rows = [line.split(":") for line in out.splitlines()] if code == 0 else []
    return [after[9] for row, after in zip(rows, rows[1:]) if row[0] == "pub" and after[0] == "fpr"]


def download(module: AnsibleModule, url: str) -> bytes:
    """The bytes at a URL."""
    try:
        with urllib.request.urlopen(url, timeout=SECONDS) as answer:  # noqa: S310 - checked by its fingerprint
            return bytes(answer.read(MAX_BYTES))
    except (OSError, ValueError, urllib.error.URLError) as error:
        module.fail_json(
            msg=f"the key of a package repository can't be downloaded from {url}: {error}. Name a mirror of the "
            f"repository in {module.params['setting']}, choose an image that has the packages, or set software.proxy"
        )
    return b""


def main() -> None:
    """Entry point."""
    module = AnsibleModule(
        argument_spec={
            "url": {"type": "str", "required": True},
            "fingerprint": {"type": "str", "required": True, "no_log": False},
            "path": {"type": "path", "required": True},
            "setting": {"type": "str", "required": True},
        },
        supports_check_mode=True,
    )
    path, wanted = Path(module.params["path"]), module.params["fingerprint"].upper()
    if path.is_file() and fingerprints(module, path) == [wanted]:
        module.exit_json(changed=False, path=str(path))
    if module.check_mode:
        module.exit_json(changed=True, path=str(path))
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(download(module, module.params["url"]))
        found = fingerprints(module, Path(name))
        if found != [wanted]:
            module.fail_json(
                msg=f"the key at {module.params['url']} has the fingerprint {', '.join(found) or 'of no key'}, not "
                f"{wanted}. Nothing was installed. If the repository really has a new key, set "
                f"{module.params['setting']} in cluster.yml"
            )
        os.chmod(name, 0o644)
        os.replace(name, path)
    finally:
        if os.path.exists(name):
            os.unlink(name)
    module.exit_json(changed=True, path=str(path))


if __name__ == "__main__":
    main()
