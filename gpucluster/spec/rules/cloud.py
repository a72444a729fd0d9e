"""Rules of `cloud`: what each provider needs."""

from __future__ import annotations

from gpucluster.spec.messages import shown
from gpucluster.spec.rules.context import RuleContext

RULES = (
    "Provider `oci` needs `cloud.region`, `cloud.compartment_id`, every `image`, and `ssh.public_key_file` or "
    "`ssh.public_keys`.",
)


def check(context: RuleContext) -> None:
    """Add every error of `cloud`."""
    cloud, provider = context.section("cloud"), context.provider
    if provider is None:
        return
    needed = {} if provider.only_region else {"region": "us-ashburn-1"}
    if provider.needs_compartment:
        needed["compartment_id"] = "ocid1.compartment.oc1..exampleuniqueid"
    for key, example in needed.items():
        if cloud.get(key) in ("", None) and key in cloud:
            message = f"is missing: provider {context.provider_name} needs it"
            context.error(("cloud", key), message, f"Add `{key}: {example}`")
    if not provider.uses_profile and context.written(("cloud", "profile")) and cloud.get("profile") is not None:
        message = f"has no meaning with provider {context.provider_name}"
        context.error(("cloud", "profile"), message, "Delete the line", key=True)
    if provider.only_region and cloud.get("region") not in (None, provider.only_region):
        message = f"provider {context.provider_name} has one region; got {shown(cloud['region'])}"
        context.error(("cloud", "region"), message, f"Delete the line, or write {provider.only_region}")
