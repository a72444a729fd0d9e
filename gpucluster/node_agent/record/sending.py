"""The message with a record to the health service of the controller."""

from __future__ import annotations

import json
from typing import Callable

from gpucluster.node_agent.errors import Failed, Refused
from gpucluster.node_agent.health import client

#: The member that marks a message to the health service as a record, not a report.
KIND = "job_record"
_SECONDS = 10.0


def to(controller: str, port: int) -> Callable[[str], bool]:
    """What sends one record, given as JSON; whether it was kept.

    The function raises Refused if the controller never takes it, and Failed if it gives no answer.
    """

    def send(text: str) -> bool:
        try:
            message = json.dumps({KIND: json.loads(text)}, separators=(",", ":"))
        except ValueError:
            raise Refused("the file has no record") from None
        answer = client.exchange(message, controller, port, _SECONDS)
        if "kept" in answer:
            return answer["kept"] is True
        if answer.get("refused") is True:
            raise Refused(str(answer.get("error"))[:500])
        # Such as a controller of an earlier release, or one whose munge is down.
        raise Failed(str(answer.get("error"))[:500])

    return send
