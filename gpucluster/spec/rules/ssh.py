"""Rules of `ssh`: the operator's key pair."""

from __future__ import annotations

from gpucluster.controller.rules import ssh_keys
from gpucluster.controller.rules.ssh_keys import BadKey
from gpucluster.spec import keys
from gpucluster.spec.document import Path
from gpucluster.spec.messages import shown
from gpucluster.spec.rules.context import RuleContext, usable
from gpucluster.spec.sections import fields
from gpucluster.text import count

RULES = (
    "Public keys are Ed25519, ECDSA (also on hardware tokens) or RSA of 2048 bits and more. A private key is refused.",
)


def check(context: RuleContext) -> None:
    """Add every error of `ssh`; the public key file is read."""
    ssh, provider = context.section("ssh"), context.provider
    public, private = ssh.get("public_key_file"), ssh.get("private_key_file")
    path: Path = ("ssh", "public_key_file")
    for index, text in usable(ssh.get("public_keys")):
        try:
            ssh_keys.check(text)
        except BadKey as bad:
            context.error(("ssh", "public_keys", index), f"the key is {bad.message}", bad.hint)
    if "public_key_file" not in ssh:
        return
    if public is None:
        if provider is not None and not provider.generates_keys and not ssh.get("public_keys"):
            hint = "Add `public_key_file: ~/.ssh/id_ed25519.pub` under `ssh:`, or the keys as text: `public_keys`"
            context.error(path, f"is missing: provider {context.provider_name} needs it", hint)
        if private is not None:
            hint = "Name the public key, too, or delete the line; then gpucluster generates a key pair"
            context.error(("ssh", "private_key_file"), "a private key without a public one", hint)
        return
    read_keys = read_key_file(context, path, public)
    if len(read_keys) > 1:
        message = f"{public} contains {count(len(read_keys), 'key')}; the operator has one"
        context.error(path, message, "Name the .pub file of one key pair")
    if read_keys and private is None and not public.endswith(".pub"):
        hint = "Add `private_key_file:` under `ssh:`"
        context.error(path, f"the name of the private key does not follow from {shown(public)}", hint)
    if private is not None:
        _check_private_key(context, private)
        _check_pair(context, private, (*read_keys, *(text for _index, text in usable(ssh.get("public_keys")))))


def read_key_file(context: RuleContext, path: Path, name: str) -> tuple[str, ...]:
    """The public keys in the file `name`, which the value at `path` names; empty, with an error, if it is wrong."""
    try:
        read_keys = keys.read(fields.located(name, context.directory))
    except BadKey as bad:
        context.error(path, bad.message, bad.hint)
        return ()
    except RuntimeError:
        context.error(path, f"there is no user with the home directory in {shown(name)}")
        return ()
    context.public_keys[name] = read_keys
    return read_keys


def _check_private_key(context: RuleContext, name: str) -> None:
    path: Path = ("ssh", "private_key_file")
    try:
        file = fields.located(name, context.directory)
        is_file = file.is_file()
    except (RuntimeError, OSError):
        is_file = False
    if not is_file:
        context.error(path, f"there is no file {name}", "Create a key pair: ssh-keygen -t ed25519")


def _check_pair(context: RuleContext, name: str, listed: tuple[str, ...]) -> None:
    """Each host gets the listed keys, and loses others: this machine must not take its own away."""
    try:
        (half,) = keys.read(fields.located(f"{name}.pub", context.directory))
    except (BadKey, ValueError, RuntimeError):
        return  # without the public half nothing is known of it
    if not any(ssh_keys.same(half, key) for key in listed):
        message = f"the key of {name} is neither in `public_key_file` nor in `public_keys`: hosts would refuse it"
        context.error(("ssh", "private_key_file"), message, f"Add the line of {name}.pub to `public_keys`")
