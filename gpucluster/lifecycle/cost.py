"""What a cluster has cost: the records of its controller, and the prices of the time."""

from __future__ import annotations

import json
import shlex
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, tzinfo
from typing import Any
from zoneinfo import ZoneInfo

from gpucluster import prices
from gpucluster.cost import records, report
from gpucluster.cost.attribute import attribute, uncovered
from gpucluster.cost.model import HostInterval, JobRun, PriceOf, Share
from gpucluster.cost.report import By, CostRow
from gpucluster.errors import InputError, ToolError
from gpucluster.handover.names import monitoring_host
from gpucluster.lifecycle.hourly_price import source_of
from gpucluster.node_agent import bounded
from gpucluster.operations.controller import ControllerConnection
from gpucluster.prices import Machine, PriceList
from gpucluster.spec import ClusterSpec

_USAGE = "sudo -n gpucluster-agent accounts usage --since {since} --until {until}"
# sacct reads the jobs of a year; 100,000 of them are 15 MB.
_SECONDS = 400.0
_MOST_BYTES = 512 * 2**20
_HOUR = 3600.0
_QUERY = "sudo -n /usr/local/bin/gpucluster-agent monitor query"
_QUERY_SECONDS = 100.0


@dataclass(frozen=True)
class CostReport:
    """What a cluster has cost in a time.

    Args:
        by: what the rows are of. `rows`: the dearest first; days in their order.
        since, until: ISO 8601, in the time zone of the cluster.
        currency: of all money. `source`: where the prices are from.
        unpriced: shape -> hours of instances without a known price. They are not in the money.
        uncovered: node -> hours of jobs of before instances were recorded. They are not in the money.
        held_unknown: why it is not known which GPUs had no process; empty if it is.
        unsure_hours: hours of instances whose end was not seen: at most their money is too much.
    """

    by: By
    since: str
    until: str
    rows: Sequence[CostRow]
    total: CostRow
    currency: str
    source: str
    unpriced: Mapping[str, float]
    uncovered: Mapping[str, float]
    unsure_hours: float
    held_unknown: str = ""

    def to_dict(self) -> dict[str, Any]:
        """As a JSON object."""
        return {
            "by": self.by,
            "since": self.since,
            "until": self.until,
            "currency": self.currency,
            "source": self.source,
            "rows": [row.to_dict() for row in self.rows],
            "total": self.total.to_dict(),
            "unpriced": dict(self.unpriced),
            "uncovered": dict(self.uncovered),
            "unsure_hours": self.unsure_hours,
            "held_unknown": self.held_unknown,
        }


class Costs:
    """Counts what one cluster has cost.

    Args:
        lists: the price lists of this folder, in the order of their days.
    """

    def __init__(
        self, spec: ClusterSpec, controller: ControllerConnection, lists: Callable[[], Sequence[PriceList]]
    ) -> None:
        self._spec, self._controller, self._lists = spec, controller, lists

    def report(self, by: By, since: str | None, until: str | None, now: float) -> CostReport:
        """What the cluster has cost.

        Args:
            since, until: a day, or a day and a time, in the time zone of the cluster. Default: this month until now.
            now: seconds of the epoch.

        Raises:
            InputError: a time can't be read, or the cluster has no accounting.
            ToolError: there is no cluster, or the controller does not answer.
        """
        spec = self._spec
        if not (spec.slurm.enabled and spec.slurm.accounting):
            hint = "With Slurm, set slurm.accounting to true"
            raise InputError("this cluster has no accounting of jobs", where=str(spec.file), hint=hint)
        zone = ZoneInfo(spec.software.timezone)
        begin = _moment(since, zone) if since else report.month(now, zone)[0]
        end = min(_moment(until, zone), now) if until else now
        if begin >= end:
            raise InputError("the time to report is empty", hint="Give --since before --until, and not in the future")
        hosts, jobs, recorded_since = self._records(begin, end)
        lists = self._lists()
        price_of = prices_of(lists, spec.autoscaler.prices, spec.cloud.price_factor)
        calendar = report.days((begin, end), zone)
        shares = list(attribute(hosts, jobs, price_of, window=(begin, end), cuts=calendar.begins))
        without_process, held_unknown = self._held(begin, end)
        rows = report.summarize(shares, by, calendar, report.held_parts(without_process, shares))
        missing = uncovered(jobs, shares, (begin, end), recorded_since)
        return CostReport(
            by,
            _iso(begin, zone),
            _iso(end, zone),
            rows,
            report.total(rows),
            prices.CURRENCY,
            source_of(lists[-1], spec.autoscaler.prices, spec.cloud.price_factor),
            _unpriced(shares),
            {name: round(seconds / _HOUR, 4) for name, seconds in missing.items()},
            round(sum(host.unsure for host in hosts if begin < host.end <= end) / _HOUR, 4),
            held_unknown,
        )

    def _held(self, begin: float, end: float) -> tuple[dict[str, float], str]:
        """Job -> hours of its GPUs without a process, as the job's report has them; or why they are not known."""
        if not self._spec.monitoring.enabled:
            return {}, "monitoring is off"
        expression = f"max_over_time(gpucluster:job_gpus_idle:hours[{max(round(end - begin), 1)}s])"
        text = json.dumps({"queries": [{"name": "held", "expr": expression, "time": end}]})
        try:
            done = self._controller.ask(_QUERY, host=monitoring_host(self._spec), text=text, timeout=_QUERY_SECONDS)
            answer = bounded.loads(done.stdout)
            rows = answer["results"]["held"]
            return {str(row["labels"]["job_id"]): float(row["values"][-1][1]) for row in rows}, ""
        except (ToolError, InputError) as error:
            return {}, error.what
        except (ValueError, KeyError, TypeError, IndexError, AttributeError):
            return {}, "Prometheus does not answer"

    def _records(self, begin: float, end: float) -> tuple[list[HostInterval], list[JobRun], float]:
        command = _USAGE.format(since=shlex.quote(repr(begin)), until=shlex.quote(repr(end)))
        done = self._controller.ask(command, timeout=_SECONDS)
        try:
            answer = bounded.loads(done.stdout, _MOST_BYTES)
            return records.hosts(answer["hosts"]), records.runs(answer["jobs"]), float(answer["recorded_since"])
        except (ValueError, KeyError, TypeError, AttributeError):
            said = " ".join((done.stderr or done.stdout).split())[-300:]
            hint = "Run: gpucluster apply. An older controller has no record of what there was"
            raise ToolError(f"the controller has no records for costs: {said}", hint=hint) from None


def prices_of(lists: Sequence[PriceList], own: Mapping[str, float], factor: float) -> PriceOf:
    """The prices of each instance: each list holds from its day on, and the first one before it, too.

    Args:
        own: the prices of `autoscaler.prices_file`, by shape; they hold at any time.
    """

    def of_host(host: HostInterval) -> list[tuple[float, float | None]]:
        machine = Machine.of(host.machine)
        return [(_day(each.updated), prices.hourly(machine, each, own, factor)) for each in lists]

    return of_host


def _moment(text: str, zone: tzinfo) -> float:
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise InputError(f"not a time: {text}", hint="Such as 2026-11-01, or 2026-11-01T12:30") from None
    return (moment if moment.tzinfo else moment.replace(tzinfo=zone)).timestamp()


def _iso(at: float, zone: tzinfo) -> str:
    return datetime.fromtimestamp(at, zone).isoformat(timespec="seconds")


def _day(text: str) -> float:
    try:
        return datetime.fromisoformat(text[:10]).replace(tzinfo=UTC).timestamp()
    except ValueError:
        return 0.0


def _unpriced(shares: Sequence[Share]) -> dict[str, float]:
    hours: defaultdict[str, float] = defaultdict(float)
    for share in shares:
        if share.price is None:
            hours[share.host.shape or "unknown shape"] += share.hours
    return {shape: round(amount, 4) for shape, amount in sorted(hours.items())}
