"""Rules of `cloud`: what each provider needs."""

from __future__ import annotations

from typing import get_args

from gpucluster import shapes
from gpucluster.oci.authentication import NOT_IN_BACKEND, Authentication
from gpucluster.spec.messages import shown
from gpucluster.spec.rules.context import RuleContext, usable

RULES = (
    "Provider `oci` needs `cloud.region`, `cloud.compartment_id`, every `image`, and `ssh.public_key_file` or "
    "`ssh.public_keys`.",
    "`cloud.auth: oidc` needs `cloud.oidc`. The local cloud has `profile` and `oidc`. `workload_identity` goes with "
    "every state but `backend: oci`, unless `state.config.auth` names another method.",
    "`cloud.local` is for provider `local`. `gpus: real` in it is for Slurm or no scheduler, for shapes with NVIDIA "
    "GPUs or none, and for GPUs that are not divided.",
)


def check(context: RuleContext) -> None:
    """Add every error of `cloud`."""
    _check_local(context)
    _check_authentication(context)
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


def _check_authentication(context: RuleContext) -> None:
    """Who asks the cloud."""
    cloud, path = context.section("cloud"), ("cloud", "auth")
    method = cloud.get("auth")
    if method == "oidc" and cloud.get("oidc") is None and ("cloud", "oidc") not in context.document.invalid:
        example = "oidc: {domain_url: https://idcs-0123456789abcdef.identity.oraclecloud.com, client_id: ...}"
        context.error(("cloud", "oidc"), "is missing: `auth: oidc` needs it", f"Add `{example}`")
    provider = context.provider
    if provider is not None and method in get_args(Authentication) and method not in provider.authentications:
        message = f"provider {context.provider_name} does not have {method}"
        context.error(path, message, f"Write one of {', '.join(provider.authentications)}")
    state = context.section("state")
    config = state.get("config")
    own = isinstance(config, dict) and "auth" in config
    if method in NOT_IN_BACKEND and state.get("backend") == "oci" and not own:
        message = f"Terraform's backend oci refuses {method}"
        hint = "Use `instance_principal`, another `state.backend`, or set `auth` under `state.config`"
        context.error(path, message, hint)


def _check_local(context: RuleContext) -> None:
    """What instances get of this machine."""
    provider, path = context.provider, ("cloud", "local")
    if provider is not None and not provider.hardware_emulated and context.written(path):
        context.error(path, f"has no meaning with provider {context.provider_name}", "Delete it", key=True)
        return
    if context.section(*path).get("gpus") != "real":
        return
    scheduler = context.data.get("scheduler")
    if scheduler == "kubernetes":
        # kubelet would need NVIDIA's device plugin and container toolkit in instances, beside what the machine gives.
        message = "pods of the local cloud can't use GPUs of this machine, and the scheduler is kubernetes"
        context.error((*path, "gpus"), message, "Delete it, or write `scheduler: slurm`")
    for name, pool in context.section("pools").items():
        shape = shapes.catalogue().get(str(pool.get("shape")))
        if shape is not None and shape.gpus and not shape.has_nvidia_gpus:
            message = f"{shape.name} has AMD GPUs, and `cloud.local.gpus: real` hands out NVIDIA's"
            context.error(("pools", name, "shape"), message, "Use a shape with NVIDIA GPUs, or emulated ones")
        if list(usable(context.section("pools", name, "gpus").get("mig"))):
            message = "an instance of the local cloud can't divide a GPU of this machine, which other instances see too"
            context.error(
                ("pools", name, "gpus", "mig"), message, "Delete it, or write `cloud.local.gpus: emulated`", key=True
            )
