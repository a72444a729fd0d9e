"""Names and numbers that belong to somebody else."""

from __future__ import annotations

from gpucluster.oci import tags


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


#: `controller` and `localhost` are hosts, `all` and `ungrouped` groups of Ansible, `default` is a keyword of Slurm.
RESERVED_POOL_NAMES = _words("all controller default localhost ungrouped")

#: Users and groups of Debian, Ubuntu, Oracle Linux and of what is installed there. They and the ids below are the same
#: as in `ansible/roles/people/files/directory/names.py`: the directory takes whom cluster.yml takes.
SYSTEM_NAMES = _words(
    """
    _apt adm admin all any apache audio avahi backup bin cdrom chrony cloud-init cloud-user colord containerd
    crontab daemon dba dbus debian dhcpcd dialout dip disk docker ec2-user fax floppy ftp games gnats gpucluster
    halt http input irc kmem kvm landscape ldap libvirt libvirt-qemu list lock lp lxd mail man mariadb mem
    messagebus munge mysql named netdev news nfsnobody nginx nobody nogroup none nslcd ntp opc openldap operator
    oracle plugdev polkitd pollinate postfix postgres prometheus proxy render root rpc rpcuser sgx shadow shutdown
    slurm src ssh ssh_keys sshd sssd staff statd sudo sync sys syslog systemd-journal systemd-network
    systemd-resolve systemd-timesync tape tcpdump tss tty ubuntu users utmp uucp uuidd video voice wheel www-data
    """
)

#: Ids of systemd's dynamic users with `nobody`, and the subordinate ids of containers without root.
RESERVED_IDS = (range(61184, 65536), range(600_178_688, 1_879_048_192))

SYSTEM_DIRECTORIES = _words(
    "/bin /boot /dev /etc /home /lib /lib64 /media /mnt /opt /proc /root /run /sbin /srv /sys /tmp /usr /var"
)
#: Directories in which nothing may be mounted, either.
NEVER_UNDER = _words("/bin /boot /dev /etc /lib /lib64 /proc /root /run /sbin /sys /tmp /usr")

#: Free-form tags by which gpucluster finds what is its own. OCI does not mind case in the keys of tags.
OWN_TAGS = tags.RESERVED

#: Keys of slurm.conf that follow from the rest of the file. Slurm does not mind case in them.
OWNED_SLURM_KEYS = _words(
    """
    AccountingStorageBackupHost AccountingStorageHost AccountingStoragePass AccountingStoragePort
    AccountingStorageTRES AccountingStorageType AccountingStorageUser AuthInfo AuthType ClusterName ControlAddr
    ControlMachine CredType DownNodes FrontendName GresTypes Include JobAcctGatherType NodeName NodeSet
    PartitionName PlugStackConfig Prolog PrologFlags PrologSlurmctld ProctrackType ResumeFailProgram ResumeProgram
    ResumeRate ResumeTimeout ReturnToService SelectType SelectTypeParameters SlurmUser SlurmctldAddr SlurmctldHost
    SlurmctldLogFile SlurmctldParameters SlurmctldPidFile SlurmctldPort SlurmdLogFile SlurmdParameters SlurmdPidFile
    SlurmdPort SlurmdSpoolDir SlurmdUser StateSaveLocation SuspendExcNodes SuspendExcParts SuspendProgram
    SuspendRate SuspendTime SuspendTimeout TaskPlugin TopologyPlugin
    """
)

#: Keys that the slurm role sets, and that `slurm.extra_config` may set otherwise. To lists of words it may only add, as
#: long as there are elastic pools: PrivateData, ReconfigFlags, SchedulerParameters.
TUNABLE_SLURM_KEYS = _words(
    """
    AccountingStorageEnforce BatchStartTimeout EnforcePartLimits GroupUpdateTime LaunchParameters MessageTimeout
    PrivateData PropagateResourceLimitsExcept ReconfigFlags SchedulerParameters SlurmdTimeout SuspendExcStates
    TreeWidth UnkillableStepTimeout
    """
)
