"""The directory from request to request, without a server: what a plan changes is read back from its records."""

from __future__ import annotations

from typing import Any

from gpucluster.controller.users import config, desired, ldif, values
from gpucluster.controller.users import plan as plans
from gpucluster.controller.users import state as states
from tests.controller.users.harness import CONFIG, SUFFIX

LOCAL = values.LocalAccounts(
    users={"root": 0, "carl": 10004},
    groups={"root": 0, "staff2": 10001},
    logins={"opc2"},
    shells={"/bin/bash", "/bin/zsh"},
)


CLUSTER = config.Config.parse(CONFIG)


class Directory:
    """What is there, from request to request; records are read back as the server would give them."""

    def __init__(self) -> None:
        self.entries: dict[str, dict[str, list[str]]] = {}
        self.homes: dict[str, int] = {}

    @property
    def state(self) -> Any:
        return states.DirectoryState.read(CLUSTER, self.entries.values())

    def plan(self, **more: Any) -> Any:
        return plans.Plan(CLUSTER, self.state, LOCAL, self.homes, **more)

    def apply(self, plan: Any) -> list[str]:
        for record in plan.records:
            self._apply(record)
        return list(plan.records)

    def _apply(self, record: str) -> None:
        (entry,) = ldif.parse(record.replace("\n-\n", "\n"))
        (dn,), (kind,) = entry.pop("dn"), entry.pop("changetype")
        if kind == "delete":
            del self.entries[dn]
        elif kind == "add":
            assert dn not in self.entries
            assert dn == SUFFIX or dn.split(",", 1)[1] in self.entries
            self.entries[dn] = {"dn": [dn], **entry}
        else:
            for verb in ("add", "delete", "replace"):
                for key in map(str.lower, entry.pop(verb, [])):
                    now = self.entries[dn].pop(key, [])
                    values = entry.get(key, [])
                    kept = {"add": now + values, "delete": [v for v in now if v not in values], "replace": values}[verb]
                    if kept:
                        self.entries[dn][key] = kept

    def want(self, name: str, **more: Any) -> bool:
        plan = self.plan()
        changed = plan.put_user(desired.desired_user({"name": name, **more}, LOCAL, desired.ADD | desired.EDIT))
        self.apply(plan)
        self.homes.setdefault(name, plan.state.users[name].uid)
        return bool(changed)

    def remove(self, name: str) -> None:
        plan = self.plan()
        plan.remove(name)
        self.apply(plan)

    def group(self, name: str, gid: int | None = None) -> int:
        plan = self.plan()
        plan.add_group(name, gid)
        self.apply(plan)
        return int(plan.state.groups[name].gid)

    def uid(self, name: str) -> int:
        return int(self.state.users[name].uid)
