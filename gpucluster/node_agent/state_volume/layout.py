"""What of a controller is state: its directories and files, and the services that use them. Pure."""

from __future__ import annotations

from collections.abc import Mapping

#: Where the volume is mounted.
MOUNT = "/var/lib/gpucluster-state"
#: Directories on the volume, which are mounted from it to their own place. Their names on the volume never change.
DIRECTORIES: Mapping[str, str] = {
    "authority": "/etc/gpucluster/authority",
    "autoscaler": "/var/lib/gpucluster-autoscaler",
    "autoscaler-spool": "/var/spool/gpucluster-autoscaler",
    "directory-hosts": "/var/lib/gpucluster-directory",
    "join": "/var/lib/gpucluster-join",
    "alertmanager": "/var/lib/gpucluster/alertmanager",
    "backup": "/var/lib/gpucluster/backup",
    "grafana": "/var/lib/gpucluster/grafana",
    "health": "/var/lib/gpucluster/health",
    "job-records": "/var/lib/gpucluster/job-records",
    "logs": "/var/lib/gpucluster/logs",
    "monitor": "/var/lib/gpucluster/monitor",
    "prometheus": "/var/lib/gpucluster/prometheus",
    "verify": "/var/lib/gpucluster/verify",
    "ldap": "/var/lib/ldap/gpucluster",
    "mysql": "/var/lib/mysql",
    # Debian's and Ubuntu's place, and that of Oracle Linux.
    "slurmctld": "/var/lib/slurm/slurmctld",
    "slurm-ctld": "/var/spool/slurm/ctld",
}
#: Those of slurmctld.
SLURM_STATE = ("slurmctld", "slurm-ctld")
#: Where the scripts of jobs are that it had accepted, and not saved when the host vanished.
LOST_JOBS = f"{MOUNT}/lost-jobs"
#: Files beside others that belong to the host: they are copied. `{home}` is that of the image's user.
FILES = (
    "/etc/gpucluster/jwt.key",
    "/etc/gpucluster/munge.key",
    "/etc/gpucluster/sssd.password",
    *(f"/etc/ssh/ssh_host_{kind}_key{end}" for kind in ("ed25519", "ecdsa", "rsa") for end in ("", ".pub")),
    "{home}/.ssh/gpucluster",
    "{home}/.ssh/gpucluster.pub",
)
#: A certificate for the key that the host had before.
CERTIFICATE = "/etc/ssh/ssh_host_ed25519_key-cert.pub"
#: Services that write there, in the order in which they are started; they are stopped the other way round.
SERVICES = (
    "mariadb.service",
    "slapd.service",
    "gpucluster-ssh-authority.socket",
    "munge.service",
    "slurmdbd.service",
    "slurmctld.service",
    # They write nothing, and have nothing to answer without slurmctld.
    "slurmrestd.service",
    "gpucluster-rest.service",
    "gpucluster-join.service",
    "gpucluster-autoscaler.service",
    "gpucluster-autoscaler-metrics.service",
    "gpucluster-health.service",
    "gpucluster-monitor.service",
    "gpucluster-prometheus.service",
    "gpucluster-alertmanager.service",
    "gpucluster-grafana.service",
    "gpucluster-backup.timer",
    "gpucluster-backup.service",
    "gpucluster-logs.timer",
    "gpucluster-logs.service",
)
#: Is there on a host that is the standby: another one has the volume.
PASSIVE = "/var/lib/gpucluster-standby/passive"
#: Stops the services where the volume is missing: no database starts on an empty directory of the boot disk.
UNIT = "gpucluster-state.service"
UNIT_FILE = f"/etc/systemd/system/{UNIT}"
#: Mounts the volume and starts the services where the other one has failed, because the volume came later.
LATE_UNIT = "gpucluster-state-late.service"
LATE_UNIT_FILE = f"/etc/systemd/system/{LATE_UNIT}"


#: What a host that takes over starts one after the other: each needs the one before it. The others follow together.
IN_ORDER = (
    "mariadb.service",
    "slapd.service",
    "sssd.service",
    "munge.service",
    "slurmdbd.service",
    "slurmctld.service",
)


def unit(program: str, *, with_address: bool = False) -> str:
    """The unit that mounts the volume at each boot, before the services.

    Args:
        with_address: an address moves with the service, and is set up where the network of the system is.
    """
    services = " ".join(SERVICES)
    network = "Wants=network-online.target\nAfter=network-online.target\n" if with_address else ""
    return f"""\
# Managed by gpucluster.
[Unit]
Description=The volume with the controller's state
Before={services}
After=local-fs.target
{network}\
OnFailure={LATE_UNIT}
StartLimitIntervalSec=0

[Service]
Type=oneshot
RemainAfterExit=true
ExecStart={program} state-volume mount
TimeoutStartSec=15min

[Install]
RequiredBy={services}
"""


def late_unit(program: str) -> str:
    """The unit that waits for a volume that was not attached when the host booted.

    Not `Restart=` of the other one: systemd of Oracle Linux 8 (239) refuses a unit of type oneshot that has it, and
    would not start the services again that it has given up.
    """
    return f"""\
# Managed by gpucluster.
[Unit]
Description=Waits for the volume with the controller's state, then starts the services
StartLimitIntervalSec=0

[Service]
Type=simple
ExecStart={program} state-volume late
Restart=on-failure
RestartSec=10
"""
