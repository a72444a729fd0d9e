"""What a rollout stores between two steps, so that a run that was killed goes on where it ended."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any

_FORMAT = 1


@dataclass(frozen=True)
class RolloutRecord:
    """How far the rollout of one pool is.

    Args:
        target: the OCID of the image that the nodes get; empty until Terraform has selected it.
        before: the OCID of the image of each node of the pool before.
        changing: the image that was asked for, by the node: it is not proven yet.
        booted: those of them that have answered since.
        passed: nodes that have the target and have passed their checks.
        failed: why, by the node: it did not come back with the target, or failed its checks.
        reverted: nodes that have their image of before again, and have passed their checks.
        lost: why, by the node: it fails its checks with its image of before, too.
        silent: why, by the node: it did not come back with either image.
        taking_back: why every node gets its image of before again; empty while none does.
        ended: how it ended; empty while it goes on.
    """

    target: str = ""
    before: Mapping[str, str] = field(default_factory=dict)
    changing: Mapping[str, str] = field(default_factory=dict)
    booted: tuple[str, ...] = ()
    passed: tuple[str, ...] = ()
    failed: Mapping[str, str] = field(default_factory=dict)
    reverted: tuple[str, ...] = ()
    lost: Mapping[str, str] = field(default_factory=dict)
    silent: Mapping[str, str] = field(default_factory=dict)
    taking_back: str = ""
    ended: str = ""

    @property
    def images(self) -> dict[str, str]:
        """The image that each node has, or is about to get: what Terraform is told."""
        return {node: self.changing.get(node) or self._image(node) for node in self.before}

    def _image(self, node: str) -> str:
        return self.target if node in self.passed and node not in self.reverted else self.before[node]

    @property
    def rolled(self) -> tuple[str, ...]:
        """The nodes that had another image than the target."""
        return tuple(sorted(node for node, image in self.before.items() if image != self.target))

    @property
    def in_work(self) -> frozenset[str]:
        """The nodes that may not answer now: they are being changed, or have failed and have the target still."""
        return frozenset({*self.changing, *self.failed}) - {*self.reverted, *self.lost, *self.silent}

    @property
    def text(self) -> str:
        """How far it is, in words."""
        ready = [node for node in self.passed if node not in self.reverted]
        parts = [f"{len(ready)} of {len(self.rolled)} nodes have the new image"]
        parts += [f"in work: {', '.join(sorted(self.changing))}"] if self.changing else []
        parts += [f"failed: {', '.join(sorted(self.failed))}"] if self.failed else []
        parts += [f"it is taken back: {self.taking_back}"] if self.taking_back and not self.ended else []
        parts += [self.ended] if self.ended else []
        return "; ".join(parts)

    def to_json(self) -> str:
        """For Terraform's state."""
        return json.dumps({"format": _FORMAT, **asdict(self)}, sort_keys=True)


def parse(text: str) -> RolloutRecord | None:
    """What `to_json` has written; None for an empty text, and for one of another format or a damaged one: the images
    that the nodes have are known to the cloud."""
    try:
        raw: dict[str, Any] = json.loads(text) if text else {}
        if raw.pop("format", None) != _FORMAT:
            return None
        raw |= {name: tuple(map(str, raw[name])) for name in ("booted", "passed", "reverted")}
        return RolloutRecord(**raw)
    except (ValueError, TypeError, KeyError, AttributeError):
        return None


def remarks(records: Mapping[str, RolloutRecord]) -> list[str]:
    """A sentence for each pool in which not every node has the image of the pool, by pool."""
    return [f"the rollout of pool {pool} is not complete: {record.text}" for pool, record in sorted(records.items())]


def begin(images: Mapping[str, str], target: str, earlier: RolloutRecord | None = None) -> RolloutRecord:
    """A new rollout, or a new attempt of one that has ended.

    Args:
        images: the image that each node of the pool has now.
        target: the OCID of the image that they get.
        earlier: the record of the rollout before. If it was to the same image, its nodes that have the target count as
            changed by this one: they are taken back with it.
    """
    same = earlier if earlier and earlier.target == target else RolloutRecord()
    passed = tuple(node for node in same.rolled if images.get(node) == target)
    return RolloutRecord(target, {**images, **{node: same.before[node] for node in passed}}, passed=passed)


def with_request(record: RolloutRecord, images: Mapping[str, str]) -> RolloutRecord:
    """These nodes are about to get these images."""
    booted = tuple(node for node in record.booted if node not in images)
    return replace(record, changing={**record.changing, **images}, booted=booted)


def with_answer(record: RolloutRecord, nodes: Iterable[str]) -> RolloutRecord:
    """These nodes have answered with the image that they were given."""
    return replace(record, booted=tuple(sorted({*record.booted, *nodes})))


def with_outcomes(record: RolloutRecord, outcomes: Mapping[str, str], *, silent: bool = False) -> RolloutRecord:
    """What has become of nodes that were changed.

    Args:
        outcomes: by the node, why it is not good; empty for one that has passed its checks.
        silent: these did not come back.
    """
    changing = {node: image for node, image in record.changing.items() if node not in outcomes}
    passed, reverted = list(record.passed), list(record.reverted)
    failed, lost, dead = dict(record.failed), dict(record.lost), dict(record.silent)
    for node, why in outcomes.items():
        forward = record.changing.get(node) == record.target
        if forward and why:
            failed[node] = why
        elif forward:
            passed.append(node)
        elif why:
            (dead if silent else lost)[node] = why
        else:
            reverted.append(node)
    return replace(
        record,
        changing=changing,
        booted=tuple(node for node in record.booted if node in changing),
        passed=tuple(sorted(set(passed))),
        failed=failed,
        reverted=tuple(sorted(set(reverted))),
        lost=lost,
        silent=dead,
    )
