"""Back up and restore the cluster's directory, Slurm's accounting, and the control plane of Kubernetes.

    gpucluster-backup create > FILE              writes one .tar.gz with everything; it has password hashes and keys
    gpucluster-backup restore [--force] < FILE   replaces all of it, and prints the new counts
    gpucluster-backup recover                    puts back what a killed restore had set aside

A restore reads and checks everything, and builds the new directory and database beside the old ones, before it stops
anything. Then it exchanges both. If it is killed in between, slapd's unit calls `recover`, which leaves either both
old databases or both new ones. The previous content is kept as a backup of its own.

Errors are one line of JSON on standard error: {"error": {"message", "hint"}}. Exit status: 0 done, 1 failed, 2 refused.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import signal
import sys
from collections.abc import Sequence
from pathlib import Path

from gpucluster.controller.backup.archive import write_backup
from gpucluster.controller.backup.restore import recover, recover_control_plane, restore
from gpucluster.controller.backup.site import Busy, Site, exclusive, work_folder
from gpucluster.controller.backup.work import note
from gpucluster.node_agent.errors import AgentError

CONFIG = Path("/etc/gpucluster/backup.json")


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return its exit status."""
    parser = argparse.ArgumentParser(prog="gpucluster-backup", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("what", choices=["create", "restore", "recover"])
    parser.add_argument("--force", action="store_true", help="also the backup of another cluster, and while jobs run")
    parser.add_argument("--config", type=Path, default=CONFIG, help="the configuration (default: %(default)s)")
    options = parser.parse_args(argv)
    os.umask(0o077)
    # A lost connection does not end a restore. On SIGTERM it ends, and everything is put back.
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        site = Site.load(options.config)
        if options.what == "recover":
            # During a restore, slapd is started by it, and there is nothing to recover.
            with contextlib.suppress(Busy), exclusive():
                recover(site)
            return 0
        with exclusive():
            recover_control_plane(site)
            if options.what == "create":
                with work_folder() as work:
                    write_backup(site, work, sys.stdout.buffer)
                    sys.stdout.flush()
            else:
                sys.stdout.write(json.dumps(restore(site, sys.stdin.buffer, force=options.force)) + "\n")
    except AgentError as error:
        note(json.dumps({"error": {"message": error.message, "hint": error.hint}}))
        return error.status
    except OSError as error:
        note(json.dumps({"error": {"message": f"{error.filename or 'the backup'}: {error.strerror}", "hint": ""}}))
        return 1
    except KeyboardInterrupt:
        note(json.dumps({"error": {"message": "interrupted", "hint": "Run it again"}}))
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
