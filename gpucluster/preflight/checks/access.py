"""Checks of access: the API key, the clock, the region, the compartment, the ssh key pair, Terraform."""

from __future__ import annotations

from collections.abc import Iterator

from gpucluster.errors import PreflightFinding as Finding
from gpucluster.preflight import requirements
from gpucluster.preflight.facts import UNAUTHENTICATED, Facts, SshPair, Unknown
from gpucluster.spec import ClusterSpec
from gpucluster.text import count

#: Allowed clock skew in seconds. OCI refuses a signature that is more than five minutes off its own time.
SKEW_WARNING, SKEW_ERROR = 60.0, 300.0
_OTHERS = 0o077
_KEY_ADVICE = (
    "The key may be deleted or belong to another user: compare user, tenancy and fingerprint of the profile with the "
    "API keys of the user in the console, or upload the key: oci iam user api-key upload"
)
_PRINCIPAL_ADVICE = (
    "The token may have expired, or its instance, resource or user may be gone: run the job again, and compare "
    "cloud.auth with what runs gpucluster (docs/how-to/gitops.md)"
)


def credentials(spec: ClusterSpec, facts: Facts) -> Iterator[Finding]:
    """The API key: it exists, only its owner can read it, the profile has its fingerprint, and the cloud accepts it.

    Without a profile, as with an instance principal: the cloud accepts what signs the requests.
    """
    key = facts.key_file
    if key is None:
        yield from _signature(spec, facts, key_fits=True)
        return
    file = f"the API key {key.path}"
    if key.problem:
        action = "Set key_file of the profile to the right file, or create a key: oci setup keys"
        if "passphrase" in key.problem:
            action = "Write it without passphrase to a file with mode 0600: openssl rsa -in OLD -out NEW"
        yield Finding("error", "credentials", f"{file}: {key.problem}", action)
        return
    if key.mode & _OTHERS:
        reason = f"{file} can be read by others (mode {key.mode:04o})"
        yield Finding("warning", "credentials", reason, f"chmod 600 {key.path}")
    fits = key.fingerprint == key.expected
    if not fits:
        reason = f"the profile has the fingerprint {key.expected}, and {file} has {key.fingerprint}"
        action = (
            "Write the fingerprint of the key into the profile, or set key_file to the key with the other fingerprint"
        )
        yield Finding("error", "credentials", reason, action)
    yield from _signature(spec, facts, fits)


def _signature(spec: ClusterSpec, facts: Facts, key_fits: bool) -> Iterator[Finding]:
    call = facts.first_call
    if call is None or call.authenticated:
        return
    if call.status != UNAUTHENTICATED:
        # Where nothing answered, the SDK's message begins with the same words.
        message = call.message.removeprefix("the cloud can't be reached: ")
        reason = f"the cloud can't be reached ({call.endpoint}): {message}"
        action = "Check the network, HTTPS_PROXY, and the name of the region in cloud.region"
        yield Finding("error", "credentials", reason, action)
    elif key_fits and not _is_clock_the_cause(facts) and not _not_subscribed(spec.cloud.region, facts):
        reason = f"the cloud does not accept the signature ({call.endpoint}): {call.message}"
        action = _KEY_ADVICE if facts.key_file else _PRINCIPAL_ADVICE
        yield Finding("error", "credentials", reason, action)


def _is_clock_the_cause(facts: Facts) -> bool:
    skew = facts.first_call.skew if facts.first_call else None
    return skew is not None and abs(skew) >= SKEW_ERROR


def clock(_spec: ClusterSpec, facts: Facts) -> Iterator[Finding]:
    """The clock of this machine agrees with that of the cloud."""
    skew = facts.first_call.skew if facts.first_call else None
    if skew is None or abs(skew) < SKEW_WARNING:
        return
    reason = f"the clock of this machine is {abs(skew):.0f} s {'ahead of' if skew > 0 else 'behind'} the cloud's"
    severe = abs(skew) >= SKEW_ERROR
    if severe:
        reason += f"; requests that are {SKEW_ERROR:.0f} s off are refused"
    yield Finding("error" if severe else "warning", "clock", reason, "Synchronize it: timedatectl set-ntp true")


def region(spec: ClusterSpec, facts: Facts) -> Iterator[Finding]:
    """The tenancy is subscribed to the region."""
    if _not_subscribed(spec.cloud.region, facts):
        assert isinstance(facts.regions, tuple)
        reason = f"the tenancy is not subscribed to the region {spec.cloud.region}"
        action = f"Use one of {', '.join(sorted(facts.regions))}, or ask an administrator to subscribe to it"
        yield Finding("error", "region", reason, action)


def _not_subscribed(name: str, facts: Facts) -> bool:
    return isinstance(facts.regions, tuple) and bool(facts.regions) and name not in facts.regions


def strangers(spec: ClusterSpec, facts: Facts) -> Iterator[Finding]:
    """The compartment of an elastic cluster without `iam.tag` has no instances of others."""
    if requirements.reaches_all(spec) and isinstance(facts.strangers, int) and facts.strangers:
        instances = count(facts.strangers, "instance")
        reason = f"the compartment has {instances} of others, which the controller's permissions let it terminate"
        action = "Set iam.tag, or use a compartment for this cluster alone: docs/how-to/policies.md"
        yield Finding("warning", "compartment", reason, action)


def compartment(spec: ClusterSpec, facts: Facts) -> Iterator[Finding]:
    """It exists and is active. OCI gives the same answer for one that is missing and one that the user may not see."""
    fact, ocid = facts.compartment, spec.cloud.compartment_id or "of the cluster"
    if isinstance(fact, Unknown) and fact.refused and not _is_visible(facts):
        reason = f"there is no compartment {ocid}, or this user may not see anything in it"
        action = (
            "Check cloud.compartment_id (oci iam compartment list --compartment-id-in-subtree true), or ask an "
            f"administrator to add: Allow group <yours> to read all-resources in compartment id {ocid}"
        )
        yield Finding("error", "compartment", reason, action)
    elif fact is not None and not isinstance(fact, Unknown) and fact.state != "ACTIVE":
        reason = f"the compartment {fact.name} is {fact.state}"
        yield Finding("error", "compartment", reason, "Set cloud.compartment_id to another, or restore it")


def _is_visible(facts: Facts) -> bool:
    """Whether something in the compartment could be read; then it exists."""
    return facts.vcns is not None and not isinstance(facts.vcns, Unknown)


def ssh(_spec: ClusterSpec, facts: Facts) -> Iterator[Finding]:
    """The operator's public and private key belong together, and ssh accepts the private key."""
    pair = facts.ssh
    if not isinstance(pair, SshPair):
        return
    if not pair.exists:
        reason = f"the private key {pair.private} is not a file on this machine"
        yield Finding("warning", "ssh", reason, "This is fine if your ssh agent has it; else set ssh.private_key_file")
    elif pair.mode & _OTHERS:
        reason = f"the private key {pair.private} can be read by others (mode {pair.mode:04o}), so ssh refuses it"
        yield Finding("error", "ssh", reason, f"chmod 600 {pair.private}")
    elif pair.locked:
        reason = f"the private key {pair.private} has a passphrase"
        yield Finding("note", "ssh", reason, f"Add it to your ssh agent before apply: ssh-add {pair.private}")
    elif not pair.derived:
        reason = f"the private key {pair.private} can't be read by ssh-keygen"
        yield Finding("error", "ssh", reason, f"Check it: ssh-keygen -y -f {pair.private}")
    elif pair.derived != pair.public:
        reason = f"the private key {pair.private} does not belong to the public key of ssh.public_key_file"
        yield Finding("error", "ssh", reason, "Name the two files of one key pair")


def terraform(_spec: ClusterSpec, facts: Facts) -> Iterator[Finding]:
    """The Terraform program supports the backend of the state."""
    if facts.terraform is not None and facts.terraform.problem:
        yield Finding("error", "terraform", facts.terraform.problem, facts.terraform.action)
