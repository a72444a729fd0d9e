"""Settings of Python's garbage collector for ansible-playbook, which forks a process for each task of each host."""

from __future__ import annotations

import gc
import os

from ansible.plugins.callback import CallbackBase

DOCUMENTATION = """
name: gpucluster_collector
type: aggregate
short_description: Fewer collections in the processes of tasks
description:
  - Ansible forks a process for each task of each host. Its collector would visit all objects of the playbook and the
    inventory, so that the kernel copies their pages, and finds nothing to free. That took a fifth of the processor
    time of such a process. With this plugin it leaves alone what existed before the fork.
  - It reports nothing. Ansible loads it because it lies beside the playbooks.
author: gpucluster
"""

# Objects that are created before the collector looks at the young ones; Python's own value is 700. A task creates some
# ten thousands, and ends.
THRESHOLD = 50_000


class CallbackModule(CallbackBase):
    """Created once, in the process that forks."""

    CALLBACK_VERSION = 2.0
    CALLBACK_TYPE = "aggregate"
    CALLBACK_NAME = "gpucluster_collector"

    def __init__(self) -> None:
        super().__init__()
        gc.set_threshold(THRESHOLD, *gc.get_threshold()[1:])
        # In this process everything is collected as before.
        os.register_at_fork(before=gc.freeze, after_in_parent=gc.unfreeze)
