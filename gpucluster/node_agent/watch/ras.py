"""What NCCL's RAS subsystem reports of a running job: its answers as text and as JSON, in one form. Pure.

NCCL counts for each rank of each communicator the collectives that it has launched. Sources: src/ras/client_support.cc
of NCCL 2.24, 2.26, 2.28 and 2.30 (the text differs between them), docs/userguide/source/troubleshooting/ras.rst.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from gpucluster.node_agent import bounded

#: What is read of an answer: ranks of all communicators together.
MOST_RANKS = 200_000
# The process that answers is a user's, and may answer anything.
_MOST_NAME = 64
_COLLECTIVE_NAME = re.compile(r"[A-Za-z]{1,32}")


class Rank(NamedTuple):
    """A rank of a communicator, and the process that has it.

    Attributes:
        rank: its number in its communicator.
        host: the address of its host as NCCL knows it; "" where the answer does not have it.
        pid: the number of its process, in that process' own namespace; 0 where the answer does not have it.
        gpu: its GPU as NVML numbers them for that process; -1 where the answer does not have it.
    """

    rank: int
    host: str = ""
    pid: int = 0
    gpu: int = -1


class Behind(NamedTuple):
    """A rank that has launched the least operations of its communicator, where not all have launched as many.

    Attributes:
        collective: such as AllReduce; "" for all together (before NCCL 2.26).
        launched: by this rank.
        highest: by the rank that has launched most.
        peers: ranks of the communicator that have launched as many as this one.
        alone: the only rank that has launched as many as the highest, of a collective that the communicator launches
            more seldom than another one; None where that is not so, or not known.
    """

    rank: Rank
    collective: str
    launched: int
    highest: int
    peers: int
    alone: Rank | None = None


class RasAnswer(NamedTuple):
    """One answer.

    Attributes:
        ranks: those that the answer names. JSON names all, text only those that stand out.
        missing: ranks from whose process RAS has got nothing.
        behind: ranks that the others may wait for.
        unnamed: whether there are such ranks that the answer counts and does not name: a text names no majority.
        counts: equal in two answers if nothing was launched between them; None where the answer has no counts: a text
            without a mismatch.
    """

    ranks: tuple[Rank, ...]
    missing: tuple[Rank, ...]
    behind: tuple[Behind, ...]
    unnamed: bool
    counts: tuple[Any, ...] | None


def parse(text: str) -> RasAnswer:
    """An answer in either form.

    Raises:
        ValueError: it is none, or exceeds a bound.
    """
    return from_json(text) if text.lstrip().startswith("{") else from_text(text)


# --- JSON, since NCCL 2.28.7 -----

# NCCL 2.28 forgets a comma in each rank that is missing.
_NO_COMMA = re.compile(r'("nvml_dev": -?\d{1,10})(\s+"status":)')


def from_json(text: str) -> RasAnswer:
    """The answer to `STATUS` after `SET FORMAT json`.

    Raises:
        ValueError: it is none, or exceeds a bound.
    """
    document = bounded.loads(_NO_COMMA.sub(r"\1,\2", text))
    communicators = document.get("communicators") if isinstance(document, dict) else None
    if not isinstance(communicators, list):
        raise ValueError("there is no list of communicators")
    ranks: list[Rank] = []
    missing: list[Rank] = []
    behind: list[Behind] = []
    counts: list[Any] = []
    for each in communicators:
        launched, absent = _communicator(each)
        ranks += [*launched, *absent]
        if len(ranks) > MOST_RANKS:
            raise ValueError(f"it has more than {MOST_RANKS} ranks")
        missing += absent
        of = (str(each.get("hash"))[:_MOST_NAME], str(each.get("secondary_hash"))[:_MOST_NAME])
        # Which rank is missing may change while nothing is launched.
        counts.append((of, tuple(sorted((rank.rank, tuple(sorted(own.items()))) for rank, own in launched.items()))))
        names = sorted({key for own in launched.values() for key in own})
        table = {name: {rank: own.get(name, 0) for rank, own in launched.items()} for name in names}
        most = max((sum(values.values()) for values in table.values()), default=0)
        for name, values in table.items():
            behind += _behind(name, values, seldom=sum(values.values()) < most)
    return RasAnswer(_once(ranks), _once(missing), tuple(behind), False, tuple(sorted(counts)))


def _behind(collective: str, values: Mapping[Rank, int], *, seldom: bool) -> Iterator[Behind]:
    lowest, highest = min(values.values()), max(values.values())
    peers = sum(value == lowest for value in values.values())
    ahead = [rank for rank, value in values.items() if value == highest]
    alone = ahead[0] if seldom and len(ahead) == 1 else None
    if lowest != highest:
        for rank, value in values.items():
            if value == lowest:
                yield Behind(rank, collective, value, highest, peers, alone)


def _communicator(raw: Any) -> tuple[dict[Rank, dict[str, int]], list[Rank]]:
    """What each rank has launched, and the ranks that are missing."""
    if not isinstance(raw, dict):
        raise ValueError("a communicator is not an object")
    launched = {}
    for each in _objects(raw.get("ranks")):
        counts = each.get("collective_counts")
        if not isinstance(counts, dict):
            raise ValueError("a rank has no counts")
        launched[_rank(each)] = {str(name): _whole(value) for name, value in counts.items()}
    absent = []
    for each in _objects(raw.get("missing_ranks")):
        status = each.get("status")
        # One that answers and is not a member is about to leave its communicator, or to enter it.
        if isinstance(status, dict) and (status.get("unresponsive") is True or status.get("considered_dead") is True):
            absent.append(_rank(each))
    if not all(_COLLECTIVE_NAME.fullmatch(name) for own in launched.values() for name in own):
        raise ValueError("a collective has no name")
    return launched, absent


def _objects(raw: Any) -> list[dict[str, Any]]:
    if not isinstance(raw, list) or len(raw) > MOST_RANKS or not all(isinstance(each, dict) for each in raw):
        raise ValueError("there is no list of ranks")
    return raw


def _rank(raw: Mapping[str, Any]) -> Rank:
    pid, gpu = raw.get("pid"), raw.get("nvml_dev")
    return Rank(
        _whole(raw.get("rank")),
        _host(str(raw.get("host") or "")),
        pid if isinstance(pid, int) and pid > 0 else 0,
        gpu if isinstance(gpu, int) and gpu >= 0 else -1,
    )


def _whole(raw: Any) -> int:
    if isinstance(raw, bool) or not isinstance(raw, int) or not 0 <= raw < 1 << 64:
        raise ValueError("a number is none")
    return raw


def _host(text: str) -> str:
    """An address; "" for what NCCL does not know, and for anything else."""
    return text if _ADDRESS.fullmatch(text) else ""


_ADDRESS = re.compile(r"[0-9A-Fa-f.:]{2,45}")


def _once(ranks: Sequence[Rank]) -> tuple[Rank, ...]:
    return tuple(dict.fromkeys(ranks))


# --- text, since NCCL 2.24 -----

_PROCESS = (
    r"GPU (?P<cuda>\d{1,3})(?: \(NVML (?P<nvml>\d{1,3})\))? managed by process (?P<pid>\d{1,10}) on node (?P<host>\S+)"
)
_UNKNOWN = r"\[process information not found\]"
_HEAD = re.compile(r"#\d+-\d+ \((?P<hash>[0-9a-f]{1,32})\) (?P<kind>[A-Z]+)")
_KIND = re.compile(r"  Communicator ranks have different (?P<collective>\w+)(?: operation counts)?")
_COLLECTIVE = re.compile(r"  Communicator ranks have different (?P<collective>\w+) operation counts")
_GROUP = re.compile(
    r"  (?P<ranks>\d{1,9}) ranks have (?:launched up to operation (?P<count>\d{1,20})|not launched any operations)"
)
_ALONE = re.compile(
    r"  Rank (?P<rank>\d{1,9}) has (?:launched up to operation (?P<count>\d{1,20})|not launched any operations)"
    rf" -- (?:{_PROCESS}|{_UNKNOWN})"
)
_NAMED = re.compile(rf"  Rank (?P<rank>\d{{1,9}}) -- (?:{_PROCESS}|{_UNKNOWN})")
_MISSING = re.compile(r"  The missing ranks?: (?P<ranks>\d{1,9}(?:,\d{1,9})*)")
_PEER = re.compile(r"  Process (?P<pid>\d{1,10}) on node (?P<host>\S+) managing GPUs? (?P<gpus>[0-9,]+)")
_INCOMPLETE = "INCOMPLETE"


class _Section:
    """The groups of ranks of one communicator and one collective."""

    def __init__(self, communicator: str, collective: str) -> None:
        self.communicator, self.collective = communicator, collective
        self.sizes: Counter[int] = Counter()
        self.named: dict[Rank, int] = {}
        self.last = 0

    def group(self, count: int, ranks: int) -> None:
        """That many ranks have launched so many."""
        self.sizes[count] += ranks
        self.last = count

    def behind(self) -> Iterator[Behind]:
        """Those that are named."""
        lowest, highest = min(self.sizes), max(self.sizes)
        for rank, count in self.named.items():
            if count == lowest != highest:
                yield Behind(rank, self.collective, count, highest, self.sizes[lowest])

    @property
    def unnamed(self) -> bool:
        """Whether some that are behind are not named."""
        return self.sizes[min(self.sizes)] > len(list(self.behind()))


def from_text(text: str) -> RasAnswer:
    """The answer to `VERBOSE STATUS`.

    Raises:
        ValueError: it is none.
    """
    lines = text.splitlines()
    if not any(line.startswith("Communicators...") for line in lines):
        raise ValueError("this is not an answer of RAS")
    sections: list[_Section] = []
    missing: list[Rank] = []
    peers: list[Rank] = []
    communicator = kind = ""
    section: _Section | None = None
    for line in lines[:MOST_RANKS]:
        head = _HEAD.fullmatch(line)
        if head or not line.startswith(" "):
            communicator, kind = (head["hash"], head["kind"]) if head else ("", line.strip())
            section = None
        elif _KIND.match(line):
            of = _COLLECTIVE.fullmatch(line)
            # Ranks can also differ in their status: that is not a count.
            section = (
                _Section(communicator, "" if of["collective"] == "collective" else of["collective"]) if of else None
            )
            sections += [section] if section else []
        elif section is not None:
            _count(section, line)
        elif kind == _INCOMPLETE:
            missing += _missing(line) if communicator else []
            peers += _peers(line) if not communicator else []
    missing = _completed(missing, peers)
    named = [rank for each in sections for rank in each.named]
    counted = [each for each in sections if each.sizes]
    return RasAnswer(
        _once([*named, *missing]),
        _once(missing),
        tuple(each_behind for each in counted for each_behind in each.behind()),
        any(each.unnamed for each in counted),
        tuple((each.communicator, each.collective, tuple(sorted(each.sizes.items()))) for each in counted) or None,
    )


def _count(section: _Section, line: str) -> None:
    group, alone, named = _GROUP.fullmatch(line), _ALONE.fullmatch(line), _NAMED.fullmatch(line)
    if group:
        section.group(int(group["count"] or 0), int(group["ranks"]))
    elif alone:
        section.group(int(alone["count"] or 0), 1)
        section.named[_matched(alone)] = section.last
    elif named:
        section.named[_matched(named)] = section.last


def _missing(line: str) -> list[Rank]:
    named, listed = _NAMED.fullmatch(line), _MISSING.fullmatch(line)
    if named:
        return [_matched(named)]
    return [Rank(int(number)) for number in listed["ranks"].split(",")] if listed else []


def _peers(line: str) -> list[Rank]:
    peer = _PEER.fullmatch(line)
    if not peer:
        return []
    gpu = peer["gpus"]
    return [Rank(-1, _host(peer["host"]), int(peer["pid"]), int(gpu) if gpu.isdigit() else -1)]


def _completed(missing: Sequence[Rank], peers: Sequence[Rank]) -> list[Rank]:
    """Before NCCL 2.26 ranks and processes are two lists: with one of each it is known who is who."""
    if len(set(missing)) == len(peers) == 1 and not missing[0].pid:
        return [peers[0]._replace(rank=missing[0].rank)]
    return list(missing)


def _matched(match: re.Match[str]) -> Rank:
    gpu = match["nvml"] or match["cuda"]
    return Rank(int(match["rank"]), _host(match["host"] or ""), int(match["pid"] or 0), int(gpu) if gpu else -1)
