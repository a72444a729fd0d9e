"""Parses the table that nccl-tests prints, of all versions since 2.0.

Lines of other programs may stand between: NCCL's own (NCCL_DEBUG=INFO), those of MPI and UCX; and mpirun and
`srun --label` write the rank in front of each line. A row is read by the names of its header, because the columns have
changed: `error` became `#wrong`, `root` came in 2.11, and per-iteration times may follow.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Sequence

from gpucluster.node_agent.nccl.causes import IN_USE, Causes
from gpucluster.node_agent.nccl.info_log import InfoLog
from gpucluster.node_agent.nccl.measurement import NO_TABLE, TIME_LIMIT, Half, Measurement, Number, RankDevice, Row

#: The label of `srun --label` (`3: `) and of mpirun (`[1,3]<stdout>:`, `[1,3]<stdout> `).
_LABEL = re.compile(r"^\s*(?:\d+:\s|\[\d+,\d+\]<std(?:out|err)>:?\s?)")
#: Outputs have a million lines of NCCL: what begins with another character has no label, and is not a row.
_LABEL_BEGINS = frozenset(" \t[0123456789")
_RANK = re.compile(
    r"^#\s+Rank\s+(\d+)\s+(?:Group\s+(\d+)\s+)?Pid\s+\d+\s+on\s+(\S+)(?:\s+device\s+\d+\s+\[[^]]*\]\s+(.*\S))?"
)
_HEADER = re.compile(r"^#\s+size\s+count\s+type\b")
_BOUNDS = re.compile(r"^#\s*Out of bounds values\s*:\s*(\d+)\s+(\w+)")
_NAME = re.compile(r"^#\s*Collective test (?:starting|concluded):\s*(\w+?)_perf\b")
_BEGIN = re.compile(r"^#\s*(?:nThread|Using devices|nccl-tests version|Collective test starting)")
#: A command line: the name with arguments, and not in a list of files.
_COMMAND = re.compile(r"\b([a-z_]+)_perf(?=\s+-)")
_NETWORK = re.compile(r"\b(?:Using network|Assigned NET plugin) (.+?)(?: to comm)?\s*$")
_SETTING = re.compile(r"\b(NCCL_[A-Z0-9_]+)(?: set by environment to |=)([^\s'\";]+)")
_ERROR = re.compile(r"Test (?:NCCL |CUDA )?failure.*|CANCELLED AT .* DUE TO TIME LIMIT")
_DEFAULT_COLUMNS = ("size", "count", "type", "redop", "root", *("time", "algbw", "busbw", "#wrong") * 2)
#: A program prints a row in up to three pieces: what it will measure, and each half when it has measured it. Whatever
#: is written between, such as NCCL's lines of the subsystem TUNING, follows a piece at once, and the next piece begins
#: a line of its own (seen with nccl-tests 2.19 and NCCL 2.28). A row that is whole never has a letter there.
_HALF = r"(?:\s+(?:\d[\d.]*(?:e[+-]?\d+)?|N/A)){4}"
_BEGUN = re.compile(rf"(\s*\d+\s+\d+\s+[a-z]\w*\s+\w+\s+-?\d+(?:{_HALF})?)([^\s\d].*)")
_CONTINUED = re.compile(rf"({_HALF})([^\s\d].*)")
#: Columns that older versions lack: a row without a header is matched with these layouts, too.
_LAYOUTS = (_DEFAULT_COLUMNS, tuple(name for name in _DEFAULT_COLUMNS if name != "root"))
_HALVES = 2
#: So many errors are enough for the reader.
_MOST_ERRORS = 5
_MOST_OTHERS, _LONGEST_OTHER = 10, 200


def parse(lines: Iterable[str]) -> Measurement:
    """The measurement of a text. Memory does not grow with lines that have no part of it."""
    reader = _Reader()
    for raw in lines:
        line = raw.rstrip("\r\n")
        if line[:1] in _LABEL_BEGINS:
            line = _LABEL.sub("", line)
        if line.startswith("#"):
            reader.comment(line)
        elif line[:1] in _LABEL_BEGINS:
            reader.numbers(line)
        else:
            reader.other(line)
    return reader.measurement()


class _Reader:
    """What the lines so far have said."""

    def __init__(self) -> None:
        self._rows: list[Row] = []
        self._devices: list[RankDevice] = []
        self._networks: set[str] = set()
        self._settings: dict[str, str] = {}
        self._errors: list[str] = []
        self._causes = Causes()
        self._log = InfoLog()
        self._others: list[str] = []
        self._operation: str | None = None
        self._columns: Sequence[str] = ()
        self._tables = self._ends = 0
        self._began = False
        # Of a row that was interrupted.
        self._piece = ""
        self._in_bounds: bool | None = None

    def comment(self, line: str) -> None:
        """A line of nccl-tests that is not a row."""
        rank, bounds, name = _RANK.match(line), _BOUNDS.match(line), _NAME.match(line)
        self._began = self._began or bool(rank or _BEGIN.match(line))
        if rank:
            self._devices.append(RankDevice(int(rank[1]), int(rank[2] or 0), rank[3], rank[4] or ""))
        elif _HEADER.match(line):
            self._tables += 1
            self._columns = line.lstrip("#").split()
        elif bounds:
            self._ends += 1
            self._in_bounds = self._in_bounds is not False and int(bounds[1]) == 0 and bounds[2] == "OK"
        elif name:
            self._operation = name[1]

    def numbers(self, line: str) -> None:
        """A line that begins as a row does, or as a piece of one."""
        torn = _BEGUN.match(line) or (_CONTINUED.match(line) if self._piece else None)
        if torn:
            self._piece = torn[1] if torn.re is _BEGUN else self._piece + torn[1]
            self.other(torn[2])
        elif self._row(line) or (self._piece and self._row(self._piece + line)):
            self._piece = ""
        else:
            self.other(line)

    def _row(self, line: str) -> bool:
        """Whether the line is a row, which is then kept."""
        row = _row(line.split(), self._columns, self._tables or NO_TABLE)
        if row is not None:
            self._rows.append(row)
        return row is not None

    def other(self, line: str) -> None:
        """A line of NCCL, of MPI or of a shell."""
        if line.startswith(IN_USE) and len(self._others) < _MOST_OTHERS:
            self._others.append(line[len(IN_USE) :].strip()[:_LONGEST_OTHER])
        # Warnings name settings as advice.
        if "NCCL_" in line and "NCCL WARN" not in line:
            self._settings.update(_SETTING.findall(line))
        network = _NETWORK.search(line) if " network " in line or " NET plugin " in line else None
        if network:
            self._networks.add(network[1])
        has_error = "failure" in line or TIME_LIMIT in line
        error = _ERROR.search(line) if has_error and len(self._errors) < _MOST_ERRORS else None
        if error and error[0][:200] not in self._errors:
            self._errors.append(error[0][:200])
        if "NCCL WARN" in line:
            self._causes.line(line)
        elif "NCCL INFO" in line:
            self._log.line(line)
        command = _COMMAND.search(line) if "_perf" in line and not self._rows else None
        if command:
            self._operation = command[1]

    def measurement(self) -> Measurement:
        """All of it."""
        return Measurement(
            self._operation, self._rows, self._tables, self._began, self._ends, self._in_bounds, self._devices, 1,
            frozenset(self._networks), self._settings, self._errors, self._causes.reasons(), self._log.log(),
            others=tuple(self._others),
        )  # fmt: skip


def _row(words: Sequence[str], columns: Sequence[str], table: int) -> Row | None:
    if len(words) < len(_LAYOUTS[-1]) or not (words[0].isdigit() and words[1].isdigit()):
        return None
    layout = columns if len(columns) == len(words) else next((x for x in _LAYOUTS if len(x) == len(words)), None)
    if layout is None:
        return None
    places = [index for index, name in enumerate(layout) if name == "busbw"]
    try:
        halves = [_half(words, layout, place) for place in places[:_HALVES]]
    except ValueError:
        return None
    if not halves or halves[0] is None:
        return None
    named = dict(zip(layout, words))
    in_place = halves[1] if len(halves) > 1 else None
    return Row(table, int(words[0]), named.get("redop", ""), int(named.get("root", "-1")), halves[0], in_place)


def _half(words: Sequence[str], layout: Sequence[str], bus: int) -> Half | None:
    """The half whose column `busbw` is at that place: `algbw` stands before it, and `#wrong` or `error` behind it."""
    if "N/A" in (words[bus], words[bus - 1]):
        return None
    wrong = None
    if bus + 1 < len(words) and layout[bus + 1] == "#wrong" and words[bus + 1] != "N/A":
        wrong = int(float(words[bus + 1]))
    return Half(_number(words[bus - 1]), _number(words[bus]), wrong)


def _number(text: str) -> Number:
    """A number as C prints it: `37.47`, `3e+06`.

    Raises:
        ValueError: it is none, or not finite.
    """
    digits, _e, exponent = text.lower().partition("e")
    value = float(text)
    if not math.isfinite(value):
        raise ValueError(text)
    return Number(value, 10.0 ** (int(exponent or 0) - len(digits.partition(".")[2])))
