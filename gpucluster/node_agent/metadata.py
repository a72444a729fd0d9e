"""What OCI's metadata service reports of the physical host of this instance."""

from __future__ import annotations

import json
import urllib.request
from typing import Any

#: The document of the physical host: some hundred bytes.
HOST_URL = "http://169.254.169.254/opc/v2/host/"
_MOST_BYTES = 1 << 16
_SECONDS = 3


def host_document() -> dict[str, Any]:
    """The document of the physical host; empty where the metadata service has none that can be read."""
    # Not by the proxy of the site, which would answer for itself.
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    request = urllib.request.Request(HOST_URL, headers={"Authorization": "Bearer Oracle"})
    try:
        with opener.open(request, timeout=_SECONDS) as answer:
            document = json.loads(answer.read(_MOST_BYTES))
    except (OSError, ValueError):
        return {}
    return document if isinstance(document, dict) else {}
