"""Mounts the volume, moves state to it once, and back. Every step can be repeated after a kill.

A directory is copied beside its place on the volume, compared, and then renamed: what has its name on the volume is
whole. The directory on the boot disk stays under another name until an operator removes it.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import filecmp
import json
import os
import pwd
import shutil
import stat
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from gpucluster.node_agent import durable_file, programs, units
from gpucluster.node_agent.errors import Failed, Refused
from gpucluster.node_agent.host_name import name_host
from gpucluster.node_agent.state_volume import accounts, device, layout, unsaved_jobs
from gpucluster.node_agent.state_volume import address as service_address
from gpucluster.node_agent.state_volume.accounts import Accounts

#: The state as it was on the boot disk.
BEFORE = ".before-state-volume"
#: What this host knows of its volume.
SETTINGS = "/etc/gpucluster/state-volume.json"
_PROGRAM = "/usr/local/bin/gpucluster-agent"
_LOCK = "/run/gpucluster-state-volume.lock"
_SAMPLE = 4 << 20
_COPY_SECONDS = 6 * 3600.0
_FORMAT_SECONDS = 1800.0
_SERVICE_SECONDS = 900.0
_POLL = 0.5
# Of a volume that was not there in the minutes of the boot.
_LATE_POLL = 5.0
# A standby has no volume when it boots, and its boot does not end before.
_PASSIVE_WAIT = 5.0
# Of the volume that must stay free: a database that can't write loses what it was asked to keep.
_SPARE = 0.1


class StateVolume:
    """The volume of one host.

    Args:
        root: of the host's file system; another one for tests.
    """

    def __init__(self, root: Path = Path("/")) -> None:
        self._root = root
        self._mount = self._at(layout.MOUNT)

    # --- what the agent offers -----

    def attach(
        self, at: str, cluster: str, user: str, *, wait: float, address: str = "", networks: Sequence[str] = ()
    ) -> dict[str, Any]:
        """Mount the volume, and bring state and directories together. Returns what was done.

        Args:
            at: the path of the device.
            user: the image's user, whose key the controller has for the nodes.
            wait: seconds until the device must be there.
            address: the address that moves with the service; empty without a standby.
            networks: into which this host speaks from that address.

        Raises:
            Refused: it is another cluster's, or holds something else. Nothing was changed.
            Failed: there is no such device, it is too small, or a program failed.
        """
        with self._alone():
            done: dict[str, Any] = {"formatted": self._mount_volume(at, cluster, wait)}
            settings: dict[str, Any] = {"device": at, "cluster": cluster, "user": user}
            if address:
                settings.update(address=address, networks=list(networks))
            marker = self._marker()
            is_new_host = marker.get("machine") != self._machine()
            restored: list[str] = []
            if is_new_host:
                done["lost_jobs"] = self._keep_lost_jobs()
                done["renumbered"] = self._keep_owners()
                restored = self._restore_files(user)
            if not marker:
                self._discard_unfinished()
            moved = self._bring_directories()
            self._write(self._at(SETTINGS), settings)
            # An attempt that was ended may have restored them all, and sshd still have the ones from before.
            host_keys = is_new_host and self._has_host_keys(user)
            if host_keys:
                if not address:  # a standby has the certificate of the host before it
                    self._at(layout.CERTIFICATE).unlink(missing_ok=True)
                self._reload_sshd()
            # From here on it is not a new host: what only such a one gets comes before.
            self._write(self._mount / "cluster.json", {"cluster": cluster, "machine": self._machine()})
            self._save(user)
            self._at(layout.PASSIVE).unlink(missing_ok=True)
            self._set_address(settings)
            self._enable_unit(with_address=bool(address))
        return {**done, "moved": moved, "restored": restored, "new_host": is_new_host, "host_keys": host_keys}

    def mount(self, wait: float) -> None:
        """Mount the volume as at the last apply; for each boot.

        Raises:
            AgentError: as `attach`; or another controller has taken the volume over.
        """
        settings = self._read(self._at(SETTINGS))
        if not settings:
            raise Failed(f"{SETTINGS} is missing: no apply has attached a volume", "Run: gpucluster apply")
        if self._at(layout.PASSIVE).exists():
            wait = min(wait, _PASSIVE_WAIT)
        address, at = str(settings.get("address") or ""), str(settings["device"])
        if not self._is_mounted():
            self._await_device(at, wait, address)
        # An apply may attach the volume at this moment: until it has ended, the marker is that of the host before.
        with self._alone():
            self._mount_volume(at, str(settings["cluster"]), wait, address)
            if self._marker().get("machine") != self._machine():
                self._unmount(self._mount)
                raise Refused(
                    "another controller has taken over the volume with the state: this one does not start its services",
                    "Terminate this instance, or make it the controller again: gpucluster apply",
                )
            for name, place in layout.DIRECTORIES.items():
                if (self._mount / "directories" / name).is_dir():
                    self._bind(name, place)
            self._set_address(settings)

    def mount_late(self) -> bool:
        """Wait until the volume is there, however long, then mount it and start the services. Returns whether it did.

        It ends without that where this host is not to have the volume, or an apply has mounted it.
        """
        while True:
            settings = self._read(self._at(SETTINGS))
            if not settings or self._at(layout.PASSIVE).exists() or self._is_active(layout.UNIT):
                return False
            if self._is_device(Path(str(settings["device"]))):
                started = programs.call(["systemctl", "start", layout.UNIT], seconds=_SERVICE_SECONDS)
                if started.returncode == 0:
                    self._start_services()
                    return True
                shown = programs.call(["systemctl", "show", "--property=ExecMainStatus", "--value", layout.UNIT])
                if shown.stdout.strip() == str(Refused.status):
                    return False
            time.sleep(_LATE_POLL)

    def take_over(
        self, at: str, cluster: str, user: str, *, wait: float, address: str, networks: Sequence[str], name: str
    ) -> dict[str, Any]:
        """Go on with the state in the place of the host before: as `attach`, then start the services in their order.

        Args:
            name: of the host in service; this one is called so from now on.

        Raises:
            AgentError: as `attach`; or a service that the next ones need does not start.
        """
        if self._is_in_service(at, cluster, address):
            return {"formatted": False, "moved": [], "restored": [], "new_host": False, "host_keys": False}
        # It may wait for the volume since the boot, and would mount it at the same time.
        self._run(["systemctl", "stop", layout.UNIT], _SERVICE_SECONDS)
        attached = self.attach(at, cluster, user, wait=wait, address=address, networks=networks)
        name_host(name)
        self._run(["systemctl", "start", layout.UNIT], _SERVICE_SECONDS)
        self._start_services()
        return attached

    def _start_services(self) -> None:
        """Start what uses the state: first what others need, one after the other.

        Raises:
            Failed: one of these does not start.
        """
        enabled = [each for each in dict.fromkeys((*layout.IN_ORDER, *layout.SERVICES)) if self._is_enabled(each)]
        for each in enabled:
            if each in layout.IN_ORDER:
                self._run(["systemctl", "start", each], _SERVICE_SECONDS)
        self._run(["systemctl", "start", "--no-block", *enabled, "remote-fs.target", "multi-user.target"])

    def _is_in_service(self, at: str, cluster: str, address: str) -> bool:
        """Whether all of `take_over` is done: a standby may have gone on by itself, and its services run."""
        settings = self._read(self._at(SETTINGS))
        if not self._is_mounted() or self._at(layout.PASSIVE).exists():
            return False
        is_ours = self._marker().get("machine") == self._machine()
        is_same = [settings.get(name) or "" for name in ("device", "cluster", "address")] == [at, cluster, address]
        names = [layout.UNIT, *(each for each in layout.IN_ORDER if self._is_enabled(each))]
        return is_ours and is_same and all(self._is_active(each) for each in names)

    def release(self) -> dict[str, Any]:
        """End the services, and write all that they know to the volume. Does nothing without it.

        The host is stopped in the cloud afterwards: what can't be unmounted ends with it.
        """
        # It would start them again.
        programs.call(["systemctl", "stop", layout.LATE_UNIT], seconds=_SERVICE_SECONDS)
        self._run(["systemctl", "stop", layout.UNIT], _SERVICE_SECONDS)
        active = [each for each in layout.SERVICES if units.is_active(each)]
        if active:
            self._run(["systemctl", "stop", *reversed(active)], _SERVICE_SECONDS)
        passive = self._at(layout.PASSIVE)
        passive.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        passive.touch()
        os.sync()
        unmounted = True
        try:
            for place in layout.DIRECTORIES.values():
                self._unmount(self._at(place))
            self._unmount(self._mount)
        except Failed:
            unmounted = False
        if address := self._read(self._at(SETTINGS)).get("address"):
            service_address.remove(str(address))
        return {"unmounted": unmounted}

    def _set_address(self, settings: Mapping[str, Any]) -> None:
        if settings.get("address"):
            service_address.add(str(settings["address"]), [str(each) for each in settings.get("networks") or ()])

    def save(self, user: str) -> None:
        """Copy the files that lie beside those of the host to the volume, and record the accounts there."""
        with self._alone():
            self._save(user)

    def _save(self, user: str) -> None:
        if not self._is_mounted():
            raise Failed(f"{layout.MOUNT} is not mounted", "Run: gpucluster apply")
        for place in self._files(user):
            source = self._at(place)
            if source.is_file():
                _copy_file(source, self._saved(place, user))
        here = self._accounts()
        self._write(self._mount / "accounts.json", here.document())

    def move_back(self) -> list[str]:
        """Bring the directories back to the boot disk, and forget the volume, which stays. Returns their paths.

        Raises:
            Failed: the boot disk has too little room, or a program failed.
        """
        if not self._is_mounted():
            raise Failed(f"{layout.MOUNT} is not mounted", "Run: gpucluster apply")
        self._require_room(
            self._mount / "directories", self._root, "Free space on the boot disk, or raise controller.boot_volume_gb"
        )
        back = []
        with self._alone(), self._stopped_services():
            for name, place in layout.DIRECTORIES.items():
                source, target = self._mount / "directories" / name, self._at(place)
                if not source.is_dir():
                    continue
                self._unmount(target)
                part = target.with_name(f".{target.name}.part")
                _copy_tree(source, part)
                shutil.rmtree(target)
                part.rename(target)
                back.append(place)
            self._run(["systemctl", "disable", "--now", layout.UNIT])
            programs.call(["systemctl", "stop", layout.LATE_UNIT], seconds=_SERVICE_SECONDS)
            for unit in (layout.UNIT_FILE, layout.LATE_UNIT_FILE):
                self._at(unit).unlink(missing_ok=True)
            self._at(SETTINGS).unlink(missing_ok=True)
            self._unmount(self._mount)
        return back

    # --- the volume -----

    def _mount_volume(self, at: str, cluster: str, wait: float, address: str = "") -> bool:
        """Returns whether it was formatted. If another host has the address, the device is not awaited for long."""
        if self._is_mounted():
            device.require_cluster(self._marker(), cluster, at)
            return False
        self._await_device(at, wait, address)
        formatted = device.needs_format(at, self._probe(at))
        if formatted:
            # No lazy initialization: it would go on for minutes behind the databases.
            self._run(["mkfs.ext4", "-q", "-L", device.LABEL, "-m", "1", at], _FORMAT_SECONDS)
        self._mount.mkdir(parents=True, exist_ok=True, mode=0o700)
        self._run(["mount", "-o", "noatime", at, str(self._mount)])
        os.chmod(self._mount, 0o700)
        try:
            device.require_cluster(self._marker(), cluster, at)
        except Refused:
            self._unmount(self._mount)
            raise
        for name in ("directories", "files"):
            (self._mount / name).mkdir(exist_ok=True, mode=0o755 if name == "directories" else 0o700)
        return formatted

    def _await_device(self, at: str, wait: float, address: str) -> None:
        until = time.monotonic() + wait
        is_elsewhere = False
        while not self._is_device(Path(at)):
            if address and not is_elsewhere and service_address.answers(address):
                # This host was lost, and another one went on. A moment is left: that one may be handing over.
                is_elsewhere = True
                until = min(until, time.monotonic() + _PASSIVE_WAIT)
            if time.monotonic() > until:
                if is_elsewhere:
                    raise Refused(
                        f"there is no device {at}, and another host has the address {address} of the service: this one "
                        "does not start its services",
                        "Make it the standby, or the controller again: gpucluster apply",
                    )
                raise Failed(
                    f"there is no device {at}: the volume with the state is not attached to this host",
                    "See in the console of the cloud whether it is attached to another instance, then run: "
                    "gpucluster apply",
                )
            time.sleep(_POLL)

    @staticmethod
    def _is_device(path: Path) -> bool:
        try:
            return stat.S_ISBLK(path.stat().st_mode)
        except OSError:
            return False

    def _probe(self, at: str) -> device.Probe:
        # -p reads the device itself: no cache of blkid may answer. Status 2: it has found nothing.
        found = programs.call(["blkid", "-p", "-o", "export", at])
        if found.returncode not in (0, 2):
            raise Failed(f"{at} can't be read: {found.stderr.strip()}", "Look at it on the controller: sudo blkid -p")
        return device.Probe(device.parse(found.stdout) if found.returncode == 0 else {}, _is_zero(Path(at)))

    def _marker(self) -> Mapping[str, str]:
        return self._read(self._mount / "cluster.json")

    def _machine(self) -> str:
        return self._at("/etc/machine-id").read_text().strip()

    # --- directories -----

    def _bring_directories(self) -> list[str]:
        """Move each directory that the volume does not have, and mount all of them. Returns the moved ones."""
        absent = [name for name in layout.DIRECTORIES if not (self._mount / "directories" / name).is_dir()]
        unbound = [name for name, place in layout.DIRECTORIES.items() if not self._is_bound(name, place)]
        if not unbound:
            return []
        moved = []
        sources = {name: self._at(layout.DIRECTORIES[name]) for name in absent}
        full = {name: source for name, source in sources.items() if source.is_dir() and any(source.iterdir())}
        for source in full.values():
            self._require_room(source, self._mount, "Raise controller.state_volume_gb")
        with self._stopped_services():
            for name in absent:
                target = self._mount / "directories" / name
                if name in full:
                    part = self._mount / "directories" / f".{name}.part"
                    _copy_tree(full[name], part)
                    part.rename(target)
                    moved.append(layout.DIRECTORIES[name])
                else:
                    target.mkdir(mode=0o755)
            for name in unbound:
                self._set_aside(self._at(layout.DIRECTORIES[name]))
                self._bind(name, layout.DIRECTORIES[name])
        return moved

    def _keep_lost_jobs(self) -> list[str]:
        """Keep the scripts of jobs that Slurm had not saved: it removes them when it starts. Returns their numbers."""
        lost: list[str] = []
        for name in layout.SLURM_STATE:
            for job, folder in unsaved_jobs.unsaved(self._mount / "directories" / name).items():
                lost.append(job)
                # On a full volume they are lost: that must not keep the cluster without a controller.
                with contextlib.suppress(Failed, OSError):
                    self._at(layout.LOST_JOBS).mkdir(exist_ok=True, mode=0o700)
                    _copy_tree(folder, self._at(layout.LOST_JOBS) / folder.name)
        return lost

    def _discard_unfinished(self) -> None:
        """Remove copies of a move that was killed: the services may have written to the boot disk since then."""
        for name, place in layout.DIRECTORIES.items():
            copy = self._mount / "directories" / name
            if copy.is_dir() and not self._is_bound(name, place):
                shutil.rmtree(copy)

    @staticmethod
    def _set_aside(place: Path) -> None:
        """Keep what the boot disk has in a place under another name. What was set aside before stays."""
        if place.is_dir() and any(place.iterdir()):
            aside = place.with_name(place.name + BEFORE)
            if aside.exists():
                aside = place.with_name(f"{place.name}{BEFORE}-{int(time.time())}")
            try:
                place.rename(aside)
            except OSError as error:
                if error.errno != errno.EXDEV:  # overlayfs renames no directory of a lower layer
                    raise
                _copy_tree(place, aside)
                for entry in list(place.iterdir()):
                    shutil.rmtree(entry) if entry.is_dir() and not entry.is_symlink() else entry.unlink()

    def _bind(self, name: str, place: str) -> None:
        if self._is_bound(name, place):
            return
        target = self._at(place)
        target.mkdir(parents=True, exist_ok=True)
        self._run(["mount", "--bind", str(self._mount / "directories" / name), str(target)])

    def _is_bound(self, name: str, place: str) -> bool:
        source, target = self._mount / "directories" / name, self._at(place)
        try:
            return os.path.samestat(source.stat(), target.stat())
        except OSError:
            return False

    def _require_room(self, source: Path, target: Path, remedy: str) -> None:
        used = sum(entry.lstat().st_blocks * 512 for entry in source.rglob("*"))
        space = os.statvfs(target)
        free = space.f_bavail * space.f_frsize
        if used > free - space.f_blocks * space.f_frsize * _SPARE:
            raise Failed(
                f"{source} has {used >> 20} MiB, and {target} has room for {free >> 20} MiB. Nothing was moved",
                f"{remedy} in cluster.yml, then run: gpucluster apply",
            )

    # --- files and owners -----

    def _files(self, user: str) -> list[str]:
        home = _home(user)
        return [place.format(home=home) for place in layout.FILES]

    def _saved(self, place: str, user: str) -> Path:
        """Where the volume has a file; the home of the image's user may have another path on the next host."""
        return self._mount / "files" / place.lstrip("/").replace(_home(user).lstrip("/"), "home", 1)

    def _restore_files(self, user: str) -> list[str]:
        """Give this host the files that the volume has. Returns those that were not like it."""
        restored = []
        for place in self._files(user):
            saved, target = self._saved(place, user), self._at(place)
            if not saved.is_file() or (target.is_file() and filecmp.cmp(saved, target, shallow=False)):
                continue
            _copy_file(saved, target)
            if place.startswith(f"{_home(user)}/"):
                entry = pwd.getpwnam(user)
                for path in (target, target.parent):
                    os.chown(path, entry.pw_uid, entry.pw_gid)
            restored.append(place)
        return restored

    def _accounts(self) -> Accounts:
        return accounts.local(self._at("/etc/passwd").read_text(), self._at("/etc/group").read_text())

    def _keep_owners(self) -> int:
        """Make the accounts that own files on the volume, and renumber files where that is not possible."""
        recorded = Accounts.of(self._read(self._mount / "accounts.json"))
        groups, users = accounts.missing(recorded, self._accounts())
        for name, number in groups.items():
            self._run(["groupadd", "--system", *(["--gid", str(number)] if number else []), name])
        for name, number in users.items():
            own = recorded.group_of.get(name, "nogroup")
            options = ["--uid", str(number)] if number else []
            options += ["--gid", own, "--no-create-home", "--home-dir", "/nonexistent", "--shell", "/usr/sbin/nologin"]
            self._run(["useradd", "--system", *options, name])
        here = self._accounts()
        by_user = accounts.changed(recorded.users, here.users)
        by_group = accounts.changed(recorded.groups, here.groups)
        count = 0
        if by_user or by_group:
            for path in (self._mount / "directories").rglob("*"):
                status = path.lstat()
                owner, group = by_user.get(status.st_uid, status.st_uid), by_group.get(status.st_gid, status.st_gid)
                if (owner, group) != (status.st_uid, status.st_gid):
                    os.lchown(path, owner, group)
                    count += 1
        return count

    def _has_host_keys(self, user: str) -> bool:
        return any("/ssh_host_" in place and self._saved(place, user).is_file() for place in self._files(user))

    # --- the host -----

    @contextlib.contextmanager
    def _alone(self) -> Iterator[None]:
        """Wait for an earlier call: one whose command was killed on the operator's machine goes on here."""
        file = self._at(_LOCK)
        file.parent.mkdir(parents=True, exist_ok=True)
        with file.open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield

    @contextlib.contextmanager
    def _stopped_services(self) -> Iterator[None]:
        """Stop the services that run, and start these again at the end, also after a failure."""
        active = [name for name in layout.SERVICES if units.is_active(name)]
        if active:
            self._run(["systemctl", "stop", *reversed(active)], _SERVICE_SECONDS)
        try:
            yield
        finally:
            if active:
                self._run(["systemctl", "start", *active], _SERVICE_SECONDS)

    @staticmethod
    def _is_active(name: str) -> bool:
        return programs.call(["systemctl", "is-active", "--quiet", name]).returncode == 0

    @staticmethod
    def _is_enabled(name: str) -> bool:
        return programs.call(["systemctl", "is-enabled", "--quiet", name]).returncode == 0

    def _enable_unit(self, *, with_address: bool) -> None:
        wanted = {
            layout.LATE_UNIT_FILE: layout.late_unit(_PROGRAM),
            layout.UNIT_FILE: layout.unit(_PROGRAM, with_address=with_address),
        }
        missing = {
            self._at(place): text
            for place, text in wanted.items()
            if not (self._at(place).is_file() and self._at(place).read_text() == text)
        }
        if not missing:
            return
        for file, text in missing.items():
            durable_file.replace(file, text, mode=0o644)
        self._run(["systemctl", "daemon-reload"])
        self._run(["systemctl", "enable", "--quiet", layout.UNIT])
        # It is mounted already: systemd must know, or a start of the services would start it.
        self._run(["systemctl", "start", "--no-block", layout.UNIT])

    @staticmethod
    def _reload_sshd() -> None:
        for name in ("ssh.service", "sshd.service"):
            programs.call(["systemctl", "try-reload-or-restart", name])

    def _is_mounted(self) -> bool:
        return os.path.ismount(self._mount)

    @staticmethod
    def _run(argv: Sequence[str], seconds: float = programs.SECONDS) -> None:
        ended = programs.call(list(argv), seconds=seconds)
        if ended.returncode != 0:
            raise Failed(f"`{' '.join(argv)}` failed: {ended.stderr.strip() or ended.stdout.strip()}", "Try again")

    def _unmount(self, place: Path) -> None:
        if os.path.ismount(place):
            self._run(["umount", str(place)])

    def _at(self, path: str) -> Path:
        return self._root / path.lstrip("/")

    @staticmethod
    def _read(file: Path) -> dict[str, Any]:
        try:
            content = json.loads(file.read_text())
        except FileNotFoundError:
            return {}
        except ValueError as error:
            raise Failed(f"{file} can't be read: {error}", "Remove it and run: gpucluster apply") from None
        return content if isinstance(content, dict) else {}

    @staticmethod
    def _write(file: Path, content: Mapping[str, Any]) -> None:
        file.parent.mkdir(parents=True, exist_ok=True)
        durable_file.replace(file, json.dumps(content, indent=1, sort_keys=True) + "\n", mode=0o600)


def _home(user: str) -> str:
    try:
        return pwd.getpwnam(user).pw_dir
    except KeyError:
        raise Refused(f"there is no user {user!r} on this host", "Run: gpucluster apply") from None


def _is_zero(path: Path) -> bool:
    """Whether the beginning and the end of a device are zeros."""
    with path.open("rb") as stream:
        first = stream.read(_SAMPLE)
        stream.seek(0, os.SEEK_END)
        stream.seek(max(stream.tell() - _SAMPLE, 0))
        last = stream.read(_SAMPLE)
    return not any(first) and not any(last)


def _copy_file(source: Path, target: Path) -> None:
    """Copy a file with its mode and its owner, as a whole."""
    target.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    part = target.with_name(f".{target.name}.part")
    part.unlink(missing_ok=True)
    status = source.stat()
    descriptor = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "wb") as stream:
        stream.write(source.read_bytes())
        os.fchown(stream.fileno(), status.st_uid, status.st_gid)
        os.fchmod(stream.fileno(), stat.S_IMODE(status.st_mode))
        stream.flush()
        os.fsync(stream.fileno())
    part.replace(target)
    durable_file.sync_folder(target.parent)


def _copy_tree(source: Path, target: Path) -> None:
    """Copy a directory with everything in it, and compare both.

    Raises:
        Failed: the copy is not like it.
    """
    if target.exists():
        shutil.rmtree(target)
    ended = programs.call(["cp", "--archive", "--sparse=always", str(source), str(target)], seconds=_COPY_SECONDS)
    if ended.returncode == 0:
        os.sync()
        differing = differences(source, target)
        if not differing:
            return
        problem = f"the copy of {differing[0]} differs"
    else:
        problem = ended.stderr.strip()
    shutil.rmtree(target, ignore_errors=True)
    raise Failed(f"{source} was not moved: {problem}", "Try again")


def differences(source: Path, target: Path) -> list[str]:
    """The paths below `source` that `target` does not have with the same content, mode and owner."""
    differing = []
    for path in (source, *sorted(source.rglob("*"))):
        other = target / path.relative_to(source)
        try:
            one, two = path.lstat(), other.lstat()
        except OSError:
            differing.append(str(path))
            continue
        same = (one.st_mode, one.st_uid, one.st_gid) == (two.st_mode, two.st_uid, two.st_gid)
        if stat.S_ISLNK(one.st_mode):
            same = same and os.readlink(path) == os.readlink(other)
        elif stat.S_ISREG(one.st_mode):
            same = same and filecmp.cmp(path, other, shallow=False)
        if not same:
            differing.append(str(path))
    return differing
