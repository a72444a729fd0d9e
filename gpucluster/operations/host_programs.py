"""Programs that are sent to hosts over ssh: one command for each host, at the same time, without Ansible.

What a program needs is sent with it, so nothing of it has to be on the host, and nothing of it is left there.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from gpucluster import cancellation, process
from gpucluster.errors import ProcessError, ToolError
from gpucluster.handover.facts_requests import HOSTS_AT_ONCE
from gpucluster.node_agent import bounded
from gpucluster.ssh import SSH_FAILED, SshClient, host_key_refused
from gpucluster.text import printable
from gpucluster.verdict.measurements import UNREACHABLE

#: Seconds before each attempt. A connection may be refused for a moment: sshd opens its port again when it reads its
#: configuration again.
PAUSES = (0.0, 1.0, 3.0)
_SHOWN = 300


def ask_hosts(
    client: SshClient, program: tuple[str, str], requests: Mapping[str, Mapping[str, Any]], seconds: float
) -> dict[str, dict[str, Any]]:
    """What a program answers on each host. One that can't be reached, gives no answer in time or none that can be read
    has why instead, under UNREACHABLE.

    Args:
        program: the command for a shell on a host, and what its input begins with (`artifacts.agent_archive`).
        requests: by host, what is asked.
        seconds: after which a host is not waited for any more.

    Raises:
        EnvironmentFault: there is no ssh.
        KeyboardInterrupt: the user stopped it, or the call was cancelled.
    """
    command, begin = program
    stop = threading.Event()

    def ask(name: str) -> dict[str, Any]:
        return _of_host(client.argv(name, [command]), begin + json.dumps(requests[name]), seconds, stop)

    with ThreadPoolExecutor(HOSTS_AT_ONCE) as threads:
        try:
            asked = {name: threads.submit(ask, name) for name in requests}
            cancellation.completed(asked.values())
            return {name: each.result() for name, each in asked.items()}
        finally:
            stop.set()  # after Ctrl-C, no thread waits for its host any more
            threads.shutdown(wait=False, cancel_futures=True)


def _of_host(argv: Sequence[str], text: str, seconds: float, stop: threading.Event) -> dict[str, Any]:
    """The answer of one host, or why there is none."""
    until = time.monotonic() + seconds
    reason = ""
    for pause in PAUSES:
        if stop.wait(pause):
            break
        left = max(until - time.monotonic(), 1.0)
        try:
            done = process.run(argv, input=text, check=False, timeout=left, stop=stop)
            if done.returncode == SSH_FAILED and not done.stdout and not host_key_refused(done.stderr):
                reason = last_line(done.stderr)
                continue
            return document(done.stdout) if done.returncode == 0 else {UNREACHABLE: last_line(done.stderr)}
        except ProcessError:
            return {UNREACHABLE: f"it gave no answer within {seconds:.0f} s"}
        except ToolError as error:
            return {UNREACHABLE: error.what}
    return {UNREACHABLE: reason}


def document(text: str) -> dict[str, Any]:
    """The JSON object that a program has sent.

    Raises:
        ToolError: it has sent something else.
    """
    try:
        value = bounded.loads(text)
    except ValueError:
        value = None
    if not isinstance(value, dict):
        raise ToolError("its answer can't be read")
    return value


def last_line(stderr: str) -> str:
    """What ssh or a program has printed last."""
    return printable(stderr.strip().rpartition("\n")[2])[:_SHOWN] or "ssh gives no reason"
