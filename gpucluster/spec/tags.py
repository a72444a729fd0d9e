"""Rules of tags: keys that OCI takes, and none by which gpucluster finds what is its own."""

from __future__ import annotations

import re

from gpucluster.spec.document import Path
from gpucluster.spec.draft import Draft
from gpucluster.spec.taken import OWN_TAGS
from gpucluster.spec.wording import shown

#: What OCI takes as the key of a tag, and as the name of a namespace: ASCII that can be seen, but no period.
_KEY = r"[!-\-/-~]{1,100}"
_CHARACTERS = "At most 100 letters, digits and signs of ASCII; no spaces and no periods"


def check_tags(draft: Draft) -> None:
    """Note every fault of `cloud.freeform_tags` and `cloud.defined_tags`."""
    for key in draft.section("cloud", "freeform_tags"):
        path: Path = ("cloud", "freeform_tags", key)
        if not re.fullmatch(_KEY, key):
            draft.fault(path, f"can't be the key of a tag: {shown(key)}", _CHARACTERS, key=True)
        elif key.casefold() in OWN_TAGS:
            message = f"the tag {key} is set by gpucluster itself"
            draft.fault(path, message, f"Choose another key; taken are {', '.join(OWN_TAGS)}", key=True)
    for key in draft.section("cloud", "defined_tags"):
        if not re.fullmatch(rf"{_KEY}\.{_KEY}", key):
            message = f"must be a namespace and a key with a period between them; got {shown(key)}"
            hint = f"Such as `Operations.CostCenter`. {_CHARACTERS} in each"
            draft.fault(("cloud", "defined_tags", key), message, hint, key=True)
