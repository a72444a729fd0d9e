"""Rules on who asks and where: the API key, the clock, the region, the compartment, the ssh key pair, Terraform."""

from __future__ import annotations

from collections.abc import Iterator

from gpucluster.errors import PreflightFinding as Finding
from gpucluster.preflight.facts import Facts, SshPair, Unknown
from gpucluster.spec import ClusterSpec

#: Seconds that our clock may be off: OCI refuses what is signed more than five minutes from its own time.
SKEW_WARNING, SKEW_ERROR = 60.0, 300.0
_OTHERS = 0o077
_UNAUTHENTICATED = 401


def credentials(spec: ClusterSpec, facts: Facts) -> Iterator[Finding]:
    """The API key: there, ours alone, the one that the profile means, and known to the cloud."""
    key = facts.key_file
    if key is None:
        return
    file = f"the API key {key.path}"
    if key.problem:
        action = "Name the right file in key_file of the profile, or make a key: oci setup keys"
        if "passphrase" in key.problem:
            action = "Write it without one into a file of mode 0600: openssl rsa -in OLD -out NEW"
        yield Finding("error", "credentials", f"{file}: {key.problem}", action)
        return
    if key.mode & _OTHERS:
        reason = f"{file} can be read by others (mode {key.mode:04o})"
        yield Finding("warning", "credentials", reason, f"chmod 600 {key.path}")
    fits = key.fingerprint == key.expected
    if not fits:
        reason = f"the profile has the fingerprint {key.expected}, and {file} has {key.fingerprint}"
        action = "Write the key's fingerprint into the profile, or name the key file that belongs to the other"
        yield Finding("error", "credentials", reason, action)
    yield from _signature(spec, facts, fits)


def _signature(spec: ClusterSpec, facts: Facts, key_fits: bool) -> Iterator[Finding]:
    answer = facts.answer
    if answer is None or answer.believed:
        return
    if answer.status != _UNAUTHENTICATED:
        # Where nothing answered, the SDK's word for it is the same.
        said = answer.message.removeprefix("the cloud can't be reached: ")
        reason = f"the cloud can't be reached ({answer.endpoint}): {said}"
        action = "Check the network, HTTPS_PROXY, and the name of the region in cloud.region"
        yield Finding("error", "credentials", reason, action)
    elif key_fits and not _clock_is_to_blame(facts) and not _not_subscribed(spec.cloud.region, facts):
        reason = f"the cloud does not accept the signature ({answer.endpoint}): {answer.message}"
        action = (
            "The key may be deleted, or another user's: compare user, tenancy and fingerprint of the profile with "
            "the API keys of the user in the console, or upload the key: oci iam user api-key upload"
        )
        yield Finding("error", "credentials", reason, action)


def _clock_is_to_blame(facts: Facts) -> bool:
    skew = facts.answer.skew if facts.answer else None
    return skew is not None and abs(skew) >= SKEW_ERROR


def clock(_spec: ClusterSpec, facts: Facts) -> Iterator[Finding]:
    """How far our clock is from the cloud's."""
    skew = facts.answer.skew if facts.answer else None
    if skew is None or abs(skew) < SKEW_WARNING:
        return
    reason = f"the clock of this machine is {abs(skew):.0f} s {'ahead of' if skew > 0 else 'behind'} the cloud's"
    severe = abs(skew) >= SKEW_ERROR
    if severe:
        reason += f"; requests that are {SKEW_ERROR:.0f} s off are refused"
    yield Finding("error" if severe else "warning", "clock", reason, "Set it: timedatectl set-ntp true")


def region(spec: ClusterSpec, facts: Facts) -> Iterator[Finding]:
    """The tenancy is subscribed to the region."""
    if _not_subscribed(spec.cloud.region, facts):
        assert isinstance(facts.regions, tuple)
        reason = f"the tenancy is not subscribed to the region {spec.cloud.region}"
        action = f"Take one of {', '.join(sorted(facts.regions))}, or let an administrator subscribe to it"
        yield Finding("error", "region", reason, action)


def _not_subscribed(name: str, facts: Facts) -> bool:
    return isinstance(facts.regions, tuple) and bool(facts.regions) and name not in facts.regions


def compartment(spec: ClusterSpec, facts: Facts) -> Iterator[Finding]:
    """It exists and is active. OCI says the same of one that is not there and of one that we may not see."""
    found, ocid = facts.compartment, spec.cloud.compartment_id or "of the cluster"
    if isinstance(found, Unknown) and found.refused and not _seen(facts):
        reason = f"there is no compartment {ocid}, or this user may not see anything in it"
        action = (
            "Check cloud.compartment_id (oci iam compartment list --compartment-id-in-subtree true), or let an "
            f"administrator allow it: Allow group <yours> to read all-resources in compartment id {ocid}"
        )
        yield Finding("error", "compartment", reason, action)
    elif found is not None and not isinstance(found, Unknown) and found.state != "ACTIVE":
        reason = f"the compartment {found.name} is {found.state}"
        yield Finding("error", "compartment", reason, "Take another in cloud.compartment_id, or restore it")


def _seen(facts: Facts) -> bool:
    """Something of the compartment could be read, so it is there."""
    return facts.vcns is not None and not isinstance(facts.vcns, Unknown)


def ssh(_spec: ClusterSpec, facts: Facts) -> Iterator[Finding]:
    """The two halves of the operator's key pair belong together, and ssh will take the private one."""
    pair = facts.ssh
    if not isinstance(pair, SshPair):
        return
    if not pair.exists:
        reason = f"the private key {pair.private} is no file of this machine"
        yield Finding("warning", "ssh", reason, "Fine if your ssh agent has it; else name it in ssh.private_key_file")
    elif pair.mode & _OTHERS:
        reason = f"the private key {pair.private} can be read by others (mode {pair.mode:04o}), so ssh refuses it"
        yield Finding("error", "ssh", reason, f"chmod 600 {pair.private}")
    elif pair.locked:
        reason = f"the private key {pair.private} has a passphrase"
        yield Finding("note", "ssh", reason, f"Let your agent have it before apply: ssh-add {pair.private}")
    elif not pair.derived:
        reason = f"the private key {pair.private} can't be read by ssh-keygen"
        yield Finding("error", "ssh", reason, f"Look at it: ssh-keygen -y -f {pair.private}")
    elif pair.derived != pair.public:
        reason = f"the private key {pair.private} does not belong to the public key of ssh.public_key_file"
        yield Finding("error", "ssh", reason, "Name the two halves of one pair")


def terraform(_spec: ClusterSpec, facts: Facts) -> Iterator[Finding]:
    """The program knows where the state lies."""
    if facts.terraform is not None and facts.terraform.problem:
        yield Finding("error", "terraform", facts.terraform.problem, facts.terraform.action)
