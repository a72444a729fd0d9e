"""`python -m gpucluster.spec schema|reference`: the text of the two generated files of docs/reference/."""

from __future__ import annotations

import sys

from gpucluster.spec.reference import json_schema_text, markdown

_TEXTS = {"schema": json_schema_text, "reference": markdown}

if __name__ == "__main__":
    wanted = sys.argv[1:]
    if len(wanted) != 1 or wanted[0] not in _TEXTS:
        sys.exit("usage: python -m gpucluster.spec schema|reference")
    sys.stdout.write(_TEXTS[wanted[0]]())
