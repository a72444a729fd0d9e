"""Rules of tags: keys that OCI accepts, without those that gpucluster sets itself."""

from __future__ import annotations

import re

from gpucluster.spec.document import Path
from gpucluster.spec.messages import shown
from gpucluster.spec.reserved import OWN_TAGS
from gpucluster.spec.rules.context import RuleContext

#: What OCI accepts as the key of a tag, and as the name of a namespace: printable ASCII without spaces and periods.
_KEY = r"[!-\-/-~]{1,100}"
_CHARACTERS = "At most 100 printable ASCII characters; no spaces and no periods"

RULES = (
    "`freeform_tags` refuses these keys, which gpucluster sets itself: "
    + ", ".join(f"`{tag}`" for tag in OWN_TAGS)
    + ". Keys have no spaces and no periods; those of `defined_tags` are `Namespace.Key`, and do not differ in case "
    "alone: OCI ignores it.",
)


def check(context: RuleContext) -> None:
    """Add every error of `cloud.freeform_tags` and `cloud.defined_tags`."""
    for key in context.section("cloud", "freeform_tags"):
        path: Path = ("cloud", "freeform_tags", key)
        if not re.fullmatch(_KEY, key):
            context.error(path, f"is not a valid key of a tag: {shown(key)}", _CHARACTERS, key=True)
        elif key.casefold() in OWN_TAGS:
            message = f"the tag {key} is set by gpucluster itself"
            context.error(path, message, f"Choose another key; reserved are {', '.join(OWN_TAGS)}", key=True)
    tag = context.section("iam").get("tag")
    if isinstance(tag, str) and tag.casefold() in map(str.casefold, context.section("cloud", "defined_tags")):
        message = f"the tag {tag} has the cluster's name as its value; cloud.defined_tags sets it, too"
        context.error(("iam", "tag"), message, "Take it out of cloud.defined_tags")
    namespaces: dict[str, str] = {}
    tags: dict[str, str] = {}
    for key in context.section("cloud", "defined_tags"):
        path = ("cloud", "defined_tags", key)
        namespace = key.partition(".")[0]
        if not re.fullmatch(rf"{_KEY}\.{_KEY}", key):
            message = f"must be a namespace and a key with a period between them; got {shown(key)}"
            hint = f"Such as `Operations.CostCenter`. {_CHARACTERS} in each"
            context.error(path, message, hint, key=True)
        elif (first := tags.setdefault(key.casefold(), key)) != key:
            context.error(path, f"is the same tag as {first}: OCI ignores case", "Keep one of them", key=True)
        elif (first := namespaces.setdefault(namespace.casefold(), namespace)) != namespace:
            message = f"is in the same namespace as the tags of {first}: OCI ignores case"
            context.error(path, message, f"Write {first}.{key.partition('.')[2]}", key=True)
