"""What happens to the controller in a round, and when. Pure: the same seed makes the same rounds.

A moment is not a time but a place in a command's events, so that a slow machine meets the same ones: `share` of the
events that the command printed when it was last left alone.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass

REPLACE = ("controller", "replace", "--yes")
APPLY = ("apply",)
ROLLOUT = ("rollout",)


@dataclass(frozen=True)
class Disturbance:
    """Something that may happen. A new one is a line in `DISTURBANCES`.

    Args:
        command: what runs meanwhile; empty: nothing.
        vanishes: the controller's instance is terminated with its boot disk, as by a failure of the host.
        killed: the command is ended with SIGKILL at the same moment.
        repair: the commands that must succeed afterwards, in this order.
        change: what is changed in cluster.yml before it: a key of `CHANGES`; empty: nothing.
        elsewhere: the repair is made by a machine that has Terraform's state, and knows nothing else of the hosts.
    """

    name: str
    command: tuple[str, ...] = ()
    vanishes: bool = True
    killed: bool = False
    repair: tuple[tuple[str, ...], ...] = (REPLACE,)
    change: str = ""
    elsewhere: bool = False


DISTURBANCES = (
    Disturbance("it vanishes"),
    Disturbance("it vanishes, and apply is run", repair=(APPLY,)),
    Disturbance("it vanishes, and another machine replaces it", elsewhere=True),
    Disturbance("it vanishes within an apply", APPLY, change="job hours"),
    Disturbance("it vanishes within an apply, which is killed", APPLY, killed=True, change="job hours"),
    Disturbance("it vanishes within an apply that goes on", APPLY, repair=(APPLY,), change="job hours"),
    Disturbance("it vanishes within a rollout", ROLLOUT, change="image", repair=(REPLACE, ROLLOUT)),
    Disturbance(
        "it vanishes within a rollout, which is killed", ROLLOUT, killed=True, change="image", repair=(REPLACE, ROLLOUT)
    ),
    Disturbance("it is replaced", REPLACE, vanishes=False),
    Disturbance("it is replaced, and the command is killed", REPLACE, vanishes=False, killed=True),
    Disturbance(
        "it is replaced, the command is killed, and apply is run", REPLACE, vanishes=False, killed=True, repair=(APPLY,)
    ),
    Disturbance(
        "it is replaced, the command is killed, and another machine applies",
        REPLACE,
        vanishes=False,
        killed=True,
        repair=(APPLY,),
        elsewhere=True,
    ),
    Disturbance("it vanishes while it is replaced", REPLACE),
    Disturbance("it vanishes while it is replaced, and the command is killed", REPLACE, killed=True),
    Disturbance("it vanishes while users are added", ("user", "add", "USER")),
)
#: What a change of cluster.yml exchanges, forth and back.
CHANGES: dict[str, Sequence[str]] = {
    "job hours": ("default_job_hours: 24", "default_job_hours: 25"),
    "image": ("Canonical-Ubuntu-24.04-2026.06.29-0", "Canonical-Ubuntu-24.04-2026.04.30-0"),
}


@dataclass(frozen=True)
class Round:
    """One disturbance at its moment.

    Args:
        share: of the command's events after which it happens, from 0 to 1.
        at_once: the repair does not wait until the instance is gone.
        outage_ends: how many jobs of those that run end while there is no controller.
    """

    number: int
    disturbance: Disturbance
    share: float
    at_once: bool
    outage_ends: int

    def __str__(self) -> str:
        return f"{self.number:02} {self.disturbance.name}, {self.share:.0%}"

    def event(self, usual: int) -> int:
        """The number of the event after which it happens, of a command that usually prints so many."""
        return max(1, round(self.share * usual))


def rounds(count: int, seed: str) -> list[Round]:
    """The rounds of a run. Each disturbance comes once before one comes again."""
    chance = random.Random(seed)
    made: list[Round] = []
    while len(made) < count:
        for each in chance.sample(DISTURBANCES, len(DISTURBANCES)):
            made.append(Round(len(made) + 1, each, chance.random(), chance.random() < 0.5, chance.randint(1, 5)))
    return made[:count]


def exchanged(text: str, change: str) -> str:
    """The text of cluster.yml after a change.

    Raises:
        ValueError: it has none of the texts that are exchanged.
    """
    first, second = CHANGES[change]
    if first in text:
        return text.replace(first, second)
    if second not in text:
        raise ValueError(f"cluster.yml has neither {first!r} nor {second!r}")
    return text.replace(second, first)
