"""Names that a cluster.yml must not use. Those of users and groups are in `gpucluster.controller.rules.names`."""

from __future__ import annotations

from gpucluster.oci import tags


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


#: `controller` and `localhost` are hosts, `all` and `ungrouped` are groups of Ansible, `default` is a keyword of Slurm.
RESERVED_POOL_NAMES = _words("all controller default localhost ungrouped")

SYSTEM_DIRECTORIES = _words(
    "/bin /boot /dev /etc /home /lib /lib64 /media /mnt /opt /proc /root /run /sbin /srv /sys /tmp /usr /var"
)
#: Directories below which nothing may be mounted.
NEVER_UNDER = _words("/bin /boot /dev /etc /lib /lib64 /proc /root /run /sbin /sys /tmp /usr")

#: Free-form tags by which gpucluster finds its own resources. OCI ignores case in the keys of tags.
OWN_TAGS = tags.RESERVED

#: Keys of slurm.conf that follow from the rest of the file. Slurm ignores case in them.
OWNED_SLURM_KEYS = _words(
    """
    AccountingStorageBackupHost AccountingStorageHost AccountingStoragePass AccountingStoragePort
    AccountingStorageTRES AccountingStorageType AccountingStorageUser AuthAltParameters AuthAltTypes AuthInfo
    AuthType ClusterName ControlAddr ControlMachine CredType DownNodes FrontendName GresTypes Include
    JobAcctGatherType NodeName NodeSet PartitionName PlugStackConfig Prolog PrologFlags PrologSlurmctld
    ProctrackType ResumeFailProgram ResumeProgram ResumeRate ResumeTimeout ReturnToService SelectType
    SelectTypeParameters SlurmUser SlurmctldAddr SlurmctldHost SlurmctldLogFile SlurmctldParameters SlurmctldPidFile
    SlurmctldPort SlurmdLogFile SlurmdParameters SlurmdPidFile SlurmdPort SlurmdSpoolDir SlurmdUser
    StateSaveLocation SuspendExcNodes SuspendExcParts SuspendProgram SuspendRate SuspendTime SuspendTimeout
    SwitchType TaskPlugin TopologyPlugin
    """
)

#: Keys that the slurm role sets, and that `slurm.extra_config` may override. As long as there are elastic pools, it may
#: only add to those that are lists of words: PrivateData, ReconfigFlags, SchedulerParameters.
TUNABLE_SLURM_KEYS = _words(
    """
    AccountingStorageEnforce BatchStartTimeout DisableRootJobs EnforcePartLimits Epilog GroupUpdateTime
    HealthCheckInterval HealthCheckNodeState HealthCheckProgram JobAcctGatherFrequency
    LaunchParameters MessageTimeout MetricsType MpiDefault PreemptMode PreemptType PriorityType
    PriorityWeightAge PriorityWeightFairshare PriorityWeightQOS PrivateData PropagateResourceLimitsExcept RebootProgram
    ReconfigFlags
    SchedulerParameters SlurmdTimeout SuspendExcStates TreeWidth UnkillableStepTimeout
    """
)
