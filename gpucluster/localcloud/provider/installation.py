"""The installation of the stand-in provider, and Terraform's configuration for it.

Terraform takes the provider from a folder (`install`) that its configuration names (`cli_config`), so `init` needs no
network. A development override would work as well, but Terraform warns about it at every command.
"""

from __future__ import annotations

import os
import platform
import shlex
import sys
import tempfile
from pathlib import Path

from gpucluster.paths import import_root

# The release that schema.json was taken from; the Terraform root requires "oracle/oci" from 6.0.
VERSION = "8.28.0"
_SOURCE = "oracle/oci"
#: Where Terraform and OpenTofu look for a provider whose address has no host.
REGISTRIES = ("registry.terraform.io", "registry.opentofu.org")
_MACHINES = {"x86_64": "amd64", "amd64": "amd64", "aarch64": "arm64", "arm64": "arm64"}
_LAUNCHER = "launch"
_ENTRY = "gpucluster.localcloud.provider.__main__"

# Terraform links the package's folder into its own and stores its checksum, so the package must never change. What
# differs between machines is in the launcher, which is outside HOST/oracle/oci/VERSION/PLATFORM/program.
_PROGRAM = f"""#!/bin/sh
exec "$(dirname "$0")/../../../../../{_LAUNCHER}" "$@"
"""


def install(plugin_dir: Path, provider_address: str) -> None:
    """Install the provider in a folder for Terraform. Writes only what is missing or has changed.

    Args:
        plugin_dir: folder of providers; several clusters may share it.
        provider_address: host, namespace and name, as `terraform providers` prints it.
    """
    version_dir = plugin_dir / provider_address / VERSION
    package = version_dir / f"{platform.system().lower()}_{_MACHINES.get(platform.machine(), platform.machine())}"
    package.mkdir(parents=True, exist_ok=True)
    # Terraform starts it about five times in one run, so it is spared what takes half of the time: Python's `site`,
    # which only the host of all providers needs (`__main__`), and the modules of `-m`.
    start = f"import sys; from {_ENTRY} import main; sys.exit(main())"
    launcher = (
        "#!/bin/sh\n"
        f"PYTHONPATH={shlex.quote(str(import_root()))} exec {shlex.quote(sys.executable)} -S -P -c '{start}'\n"
    )
    _write_program(plugin_dir / _LAUNCHER, launcher)
    _write_program(package / f"terraform-provider-oci_v{VERSION}", _PROGRAM)


def cli_config(plugin_dir: Path) -> str:
    """A Terraform CLI configuration (TF_CLI_CONFIG_FILE): oracle/oci from `plugin_dir`, other providers as usual."""
    path = str(plugin_dir.resolve()).replace("\\", "\\\\").replace('"', '\\"').replace("${", "$${").replace("%{", "%%{")
    return f"""disable_checkpoint = true

provider_installation {{
  filesystem_mirror {{
    path    = "{path}"
    include = ["{_SOURCE}"]
  }}
  direct {{
    exclude = ["{_SOURCE}"]
  }}
}}
"""


def _write_program(path: Path, text: str) -> None:
    """Replace a file atomically, so that a Terraform that starts now sees the old file or the new one."""
    if path.exists() and path.read_text() == text and os.access(path, os.X_OK):
        return
    handle, name = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
    try:
        with os.fdopen(handle, "w") as file:
            file.write(text)
        os.chmod(name, 0o700)
        os.replace(name, path)
    except OSError:
        Path(name).unlink(missing_ok=True)
        raise
