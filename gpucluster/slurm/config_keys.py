"""Keys of slurm.conf, to recognize one that is misspelled.

No list is complete: a later release has keys that are not here. So a key that is missing here is worth a warning and no
more; slurmctld itself refuses what it does not know. Slurm ignores case in keys.
"""

from __future__ import annotations

import re


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


#: Those that Slurm 24.11 reads. tests/security/test_text_judges.py compares them with its parser.
OF_24_11 = _words(
    """
    AccountingStorageBackupHost AccountingStorageEnforce AccountingStorageExternalHost AccountingStorageHost
    AccountingStorageLoc AccountingStorageParameters AccountingStoragePass AccountingStoragePort
    AccountingStorageTRES AccountingStorageType AccountingStorageUser AccountingStoreFlags AccountingStoreJobComment
    AcctGatherEnergyType AcctGatherFilesystemType AcctGatherInfinibandType AcctGatherInterconnectType
    AcctGatherNodeFreq AcctGatherProfileType AllowSpecResourcesUsage AuthAltParameters AuthAltTypes AuthInfo
    AuthType BackupAddr BackupController BatchStartTimeout BcastExclude BcastParameters BurstBufferParameters
    BurstBufferType CertmgrParameters CertmgrType CliFilterPlugins ClusterName CommunicationParameters CompleteWait
    ControlAddr ControlMachine CoreSpecPlugin CpuFreqDef CpuFreqGovernors CredType CryptoType DataParserParameters
    DebugFlags DefCpuPerGPU DefMemPerCPU DefMemPerGPU DefMemPerNode DependencyParameters DisableRootJobs DownNodes
    EioTimeout EnforcePartLimits Epilog EpilogMsgTime EpilogSlurmctld ExtSensorsFreq ExtSensorsType
    FairShareDampeningFactor FastSchedule FederationParameters FirstJobId GetEnvTimeout GpuFreqDef GresTypes
    GroupUpdateForce GroupUpdateTime HashPlugin HealthCheckInterval HealthCheckNodeState HealthCheckProgram
    InactiveLimit InteractiveStepOptions JobAcctGatherFrequency JobAcctGatherParams JobAcctGatherType JobCompHost
    JobCompLoc JobCompParams JobCompPass JobCompPort JobCompType JobCompUser JobContainerType
    JobCredentialPrivateKey JobCredentialPublicCertificate JobFileAppend JobRequeue JobSubmitPlugins KeepAliveTime
    KillOnBadExit KillWait LaunchParameters LaunchType Licenses LogTimeFormat MailDomain MailProg MaxArraySize
    MaxBatchRequeue MaxDBDMsgs MaxJobCount MaxJobId MaxMemPerCPU MaxMemPerNode MaxNodeCount MaxStepCount
    MaxTasksPerNode MCSParameters MCSPlugin MessageTimeout MinJobAge MpiDefault MpiParams NodeFeaturesPlugins
    NodeName NodeSet OverTimeLimit PartitionName PluginDir PlugStackConfig PowerParameters PowerPlugin
    PreemptExemptTime PreemptMode PreemptParameters PreemptType PrEpParameters PrEpPlugins PriorityCalcPeriod
    PriorityDecayHalfLife PriorityFavorSmall PriorityFlags PriorityMaxAge PriorityParameters
    PrioritySiteFactorParameters PrioritySiteFactorPlugin PriorityType PriorityUsageResetPeriod PriorityWeightAge
    PriorityWeightAssoc PriorityWeightFairshare PriorityWeightJobSize PriorityWeightPartition PriorityWeightQOS
    PriorityWeightTRES PrivateData ProctrackType Prolog PrologEpilogTimeout PrologFlags PrologSlurmctld
    PropagatePrioProcess PropagateResourceLimits PropagateResourceLimitsExcept RebootProgram ReconfigFlags
    RequeueExit RequeueExitHold ResumeFailProgram ResumeProgram ResumeRate ResumeTimeout ResvEpilog ResvOverRun
    ResvProlog ReturnToService RoutePlugin SallocDefaultCommand SbcastParameters SchedulerParameters
    SchedulerTimeSlice SchedulerType ScronParameters SelectType SelectTypeParameters SlurmctldAddr SlurmctldDebug
    SlurmctldHost SlurmctldLogFile SlurmctldParameters SlurmctldPidFile SlurmctldPort SlurmctldPrimaryOffProg
    SlurmctldPrimaryOnProg SlurmctldSyslogDebug SlurmctldTimeout SlurmdDebug SlurmdLogFile SlurmdParameters
    SlurmdPidFile SlurmdPort SlurmdSpoolDir SlurmdSyslogDebug SlurmdTimeout SlurmdUser SlurmSchedLogFile
    SlurmSchedLogLevel SlurmUser SrunEpilog SrunPortRange SrunProlog StateSaveLocation SuspendExcNodes
    SuspendExcParts SuspendExcStates SuspendProgram SuspendRate SuspendTime SuspendTimeout SwitchParameters
    SwitchType TaskEpilog TaskPlugin TaskPluginParam TaskProlog TCPTimeout TLSParameters TLSType TmpFS TopologyParam
    TopologyPlugin TrackWCKey TreeWidth UnkillableStepProgram UnkillableStepTimeout UsePAM VSizeFactor WaitTime
    X11Parameters
    """
)
#: Those of other releases, from public copies of the sources of an earlier one and of a release candidate of 26.11. No
#: parser has confirmed them. (24.11 reads FrontendName in special builds only.)
OF_OTHER_RELEASES = _words(
    """
    CertgenParameters CertgenType CliFilterParameters DefRuntimePlugin EpilogTimeout FrontendName HealthCheckTimeout
    HttpParserType JobCompPassScript LicenseParameters MetricsAuthUsers MetricsParameters MetricsType NamespaceType
    PowerAction PrologTimeout SchedulerAuth SerializerParameters SerializerPlugins SlurmctldHttpAuthParameters
    SlurmctldPlugstack SlurmdHttpAuthParameters SlurmrestdHttpAuthParameters SlurmrestdParameters
    SlurmstepdParameters UrlParserType
    """
)
KNOWN = OF_24_11 | OF_OTHER_RELEASES

#: Keys whose value is a whole number, by the number of its bits, as the parsers of 22.05 and 24.11 read them. The test
#: of the names asks the parser for these, too.
NUMBERS = {
    16: _words(
        """
        AccountingStoragePort AcctGatherNodeFreq BatchStartTimeout CompleteWait EioTimeout FairShareDampeningFactor
        FastSchedule GetEnvTimeout GroupUpdateForce GroupUpdateTime HealthCheckInterval InactiveLimit JobFileAppend
        JobRequeue KillOnBadExit KillWait MaxTasksPerNode MessageTimeout OverTimeLimit PrologEpilogTimeout
        PropagatePrioProcess ResumeRate ResumeTimeout ResvOverRun ReturnToService SchedulerTimeSlice SlurmctldTimeout
        SlurmdTimeout SlurmSchedLogLevel SuspendRate SuspendTimeout TCPTimeout TreeWidth UnkillableStepTimeout
        VSizeFactor WaitTime
        """
    ),
    32: _words(
        """
        EpilogMsgTime FirstJobId JobCompPort KeepAliveTime MaxArraySize MaxBatchRequeue MaxDBDMsgs MaxJobCount MaxJobId
        MaxNodeCount MaxStepCount MinJobAge PriorityWeightAge PriorityWeightAssoc PriorityWeightFairshare
        PriorityWeightJobSize PriorityWeightPartition PriorityWeightQOS SlurmdPort
        """
    ),
    64: _words("DefCpuPerGPU DefMemPerCPU DefMemPerGPU DefMemPerNode MaxMemPerCPU MaxMemPerNode"),
}
#: Keys whose value is yes or no.
BOOLEANS = _words("AllowSpecResourcesUsage DisableRootJobs PriorityFavorSmall TrackWCKey UsePAM")

_BITS = {key.casefold(): bits for bits, keys in NUMBERS.items() for key in keys}
_YES_OR_NO = {key.casefold() for key in BOOLEANS}
_NUMBER = re.compile(r"[0-9]+|0[xX][0-9a-fA-F]+|INFINITE|UNLIMITED", re.IGNORECASE)
_BOOLEAN = re.compile(r"YES|NO|TRUE|FALSE|UP|DOWN|1|0", re.IGNORECASE)


def refused(key: str, value: str) -> str:
    """What Slurm's parser would refuse of a value, as what it wants; "" if nothing is known against it.

    Args:
        value: as it stands in the file. A value in double quotes is what they enclose.
    """
    text = value.strip('"')
    bits = _BITS.get(key.casefold())
    if bits is not None and not (_NUMBER.fullmatch(text) and (not text.isdecimal() or int(text) < 2**bits)):
        return f"a whole number from 0 to {2**bits - 1}, or INFINITE"
    if key.casefold() in _YES_OR_NO and not _BOOLEAN.fullmatch(text):
        return "YES or NO"
    return ""
