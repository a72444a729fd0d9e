"""Back up and restore the cluster's directory, Slurm's accounting, and the control plane of Kubernetes.

    gpucluster-backup create > FILE              writes one .tar.gz with everything; it has password hashes and keys
    gpucluster-backup restore [--force] < FILE   replaces all of it, and prints the new counts
    gpucluster-backup recover                    puts back what a killed restore had set aside
    gpucluster-backup scheduled                  writes an encrypted one into the directory of backup.directory
    gpucluster-backup list                       prints what is there, as one JSON object
    gpucluster-backup fetch NAME > FILE          writes one of them, as it is

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
from typing import Any, Callable

from gpucluster.controller.backup import scheduled
from gpucluster.controller.backup.archive import write_backup
from gpucluster.controller.backup.restore import recover, recover_control_plane, restore
from gpucluster.controller.backup.schedule import record
from gpucluster.controller.backup.site import KEPT, Busy, Site, exclusive, work_folder
from gpucluster.controller.backup.work import note
from gpucluster.node_agent.errors import AgentError, Failed, of_system

CONFIG = Path("/etc/gpucluster/backup.json")
# How long a run of the schedule waits for a backup or a restore that an operator has started.
_PATIENCE_S = 1800.0


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return its exit status."""
    parser = argparse.ArgumentParser(prog="gpucluster-backup", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("what", choices=["create", "restore", "recover", *_OF_THE_SCHEDULE])
    parser.add_argument("name", nargs="?", default="", help="with fetch: the name of a backup")
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
        if options.what in _OF_THE_SCHEDULE:
            _OF_THE_SCHEDULE[options.what](site, options.name)
        else:
            with exclusive():
                recover_control_plane(site)
                if options.what == "create":
                    with work_folder() as work:
                        write_backup(site, work, sys.stdout.buffer)
                else:
                    sys.stdout.write(json.dumps(restore(site, sys.stdin.buffer, force=options.force)) + "\n")
        sys.stdout.flush()
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


def _scheduled(site: Site) -> dict[str, Any]:
    """One run of the schedule: it waits for a backup or restore that an operator has started, and is recorded."""
    status, size = 1, 0
    try:
        with exclusive(patience=_PATIENCE_S):
            if site.control_plane and site.control_plane.interrupted():
                # Nobody watches, and the way back ends the API server: an operator decides on the moment.
                raise Failed("a restore was interrupted", "Run it again, or run: gpucluster backup")
            made = scheduled.make(site)
        status, size = 0, made["bytes"]
        return made
    except AgentError as error:
        status = error.status
        raise
    except OSError as error:
        raise of_system(error, "the backup") from error
    finally:
        if site.schedule is not None:
            with contextlib.suppress(OSError):  # on a full disk the first error is more useful
                record(site.schedule, KEPT, status, size)


_OF_THE_SCHEDULE: dict[str, Callable[[Site, str], object]] = {
    "scheduled": lambda site, _name: sys.stdout.write(json.dumps(_scheduled(site)) + "\n"),
    "list": lambda site, _name: sys.stdout.write(json.dumps({"backups": scheduled.listed(site)}) + "\n"),
    "fetch": lambda site, name: scheduled.send(site, name, sys.stdout.buffer),
}


if __name__ == "__main__":
    sys.exit(main())
