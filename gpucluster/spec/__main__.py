"""`python -m gpucluster.spec schema|reference` prints one of the two generated files in docs/reference/."""

from __future__ import annotations

import sys

from gpucluster.spec.reference import json_schema_text, markdown

_TEXTS = {"schema": json_schema_text, "reference": markdown}

if __name__ == "__main__":
    arguments = sys.argv[1:]
    if len(arguments) != 1 or arguments[0] not in _TEXTS:
        sys.exit("usage: python -m gpucluster.spec schema|reference")
    sys.stdout.write(_TEXTS[arguments[0]]())
