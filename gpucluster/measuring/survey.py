"""The measurements of one pool, in their order, and what they mean. Its only effect is the function that measures.

1. NCCL on each idle node. What is bad or silent there is left out of the rest, which it would slow down.
2. Pairs of neighbours: NCCL as users run it and with a ring, and ib_write_bw of each device.
3. The search for what is bad in the network (`fabric`), with a ring: it uses the wires fully.
4. All that is left, together.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from gpucluster.fabric import diagnosis
from gpucluster.fabric.model import Fabric, FabricMeasurement, Results
from gpucluster.fabric.model import FabricVerdict as Found
from gpucluster.measuring import baseline, checks, plan, results
from gpucluster.measuring.plan import MeasuredPool, Tools
from gpucluster.measuring.results import JobAnswer, Nccl
from gpucluster.node_agent.checks.model import Check, Finding, Missing, RefusedMeasurement, Status, evaluate
from gpucluster.node_agent.nccl import collectives, limits
from gpucluster.node_agent.nccl.judge import NcclVerdict
from gpucluster.node_agent.nccl.shape_limits import SHAPES

#: Runs jobs and returns each answer by the id of its job. First: what they are about, as a text.
Run = Callable[[str, Sequence[Mapping[str, Any]]], Mapping[str, JobAnswer | Missing]]
Pair = tuple[str, str]

_ALGORITHMS = (limits.DEFAULT, limits.RING)
#: sinfo's word for a node that no job uses; with a sign behind it, the node is powered down, planned or silent. Also
#: that of `gpucluster.controller.measure.pods`.
_IDLE = "idle"
_PAIR = 2
#: From this number of nodes on there are two groups and more, which show what is healthy.
_ENOUGH = 4


class Survey:
    """The measurements of one pool.

    Args:
        nodes: all of the pool that are wanted.
        states: of every node, as sinfo prints them, or `gpucluster.controller.measure.pods`.
        before: what the cluster reached before, see `baseline`.
    """

    def __init__(
        self,
        pool: MeasuredPool,
        nodes: Sequence[str],
        tools: Tools,
        states: Mapping[str, str],
        before: Mapping[str, Any],
        run: Run,
    ) -> None:
        self._pool, self._nodes, self._tools, self._before, self._run = pool, list(nodes), tools, before, run
        self._silent = {node: _why_not(states.get(node)) for node in nodes if states.get(node) != _IDLE}
        self._by_node: dict[str, Nccl] = {}
        self._by_pair: dict[Pair, dict[str, Nccl]] = {}
        self._write: dict[Pair, Mapping[str, float] | Missing] = {}
        self._ping: dict[Pair, Mapping[str, bool] | Missing] = {}
        self._whole: dict[str, Nccl] = {}
        self._of_whole: list[str] = []
        self._search: Found | Missing = Missing("fewer than two nodes could be measured")
        self._left_out: dict[str, Missing] = {}

    def measure(self) -> None:
        """Measure everything that there is to measure."""
        nodes = [node for node in self._nodes if node not in self._silent]
        if self._includes(checks.NODE):
            nodes = self._each_node(nodes)
        if self._includes(checks.WRITE_BANDWIDTH):
            self._each_device(plan.pairs(nodes))
        if not self._includes(checks.PAIR) or len(nodes) < _PAIR:
            return
        self._each_pair(plan.pairs(nodes))
        self._search = faults = self._find(nodes)
        bad = {*faults.nodes, *faults.rails, *faults.unknown}
        left = [node for node in nodes if node not in bad]
        if len(left) >= _PAIR:
            self._together(left)

    # --- measuring -----

    def _includes(self, check: Check[MeasuredPool]) -> bool:
        return not check.applies(self._pool, "")

    def _each_node(self, nodes: Sequence[str]) -> list[str]:
        """Returns the nodes that are not bad in themselves."""
        single_nodes = [(node,) for node in nodes]
        measured = self._nccl("NCCL on each node", [(nodes_, limits.DEFAULT, "") for nodes_ in single_nodes])
        self._by_node = _without_common_failure({nodes_[0]: value for (nodes_, _, _), value in measured.items()})
        good = []
        for finding in self._node_findings():
            value = self._by_node.get(finding.subject)
            if isinstance(value, NcclVerdict) and finding.status is not Status.FAIL:
                good.append(finding.subject)
            elif finding.subject in self._by_node:
                self._left_out[finding.subject] = Missing("it was left out, because nccl_node is not good")
        return good

    def _each_device(self, pairs: Sequence[Pair]) -> None:
        jobs = [plan.rdma(self._pool, pair, number=number) for number, pair in enumerate(pairs)]
        answers = self._run("ib_write_bw and rping between pairs", jobs) if jobs else {}
        for number, pair in enumerate(pairs):
            answer = answers.get(str(number), Missing("it was not measured"))
            self._write[pair], self._ping[pair] = results.rdma(answer), results.ping(answer)

    def _each_pair(self, pairs: Sequence[Pair]) -> None:
        runs = [(pair, algorithm, "") for algorithm in _ALGORITHMS for pair in pairs]
        measured = self._nccl("NCCL between pairs", runs)
        for (pair, algorithm, _), value in measured.items():
            self._by_pair.setdefault((pair[0], pair[1]), {})[algorithm] = value

    def _together(self, nodes: Sequence[str]) -> None:
        self._of_whole = list(nodes)
        known = self._by_pair.get((nodes[0], nodes[1])) if len(nodes) == _PAIR else None
        runs = [(tuple(nodes), algorithm, "") for algorithm in _ALGORITHMS]
        measured = self._nccl("NCCL between all nodes", runs) if known is None else {}
        self._whole = known or {algorithm: value for (_, algorithm, _), value in measured.items()}

    def _find(self, nodes: Sequence[str]) -> Found:
        fabric = Fabric((tuple(nodes),), len(self._pool.shape.rdma_devices), self._expected(len(nodes)))
        rounds: list[Results] = []
        while True:
            step = diagnosis.advance(fabric, rounds)
            if isinstance(step, Found):
                return step
            rounds.append(self._bandwidths(step, len(rounds) + 1))

    def _bandwidths(self, measurements: Sequence[FabricMeasurement], number: int) -> Results:
        devices = self._pool.shape.rdma_devices
        by_words = {
            (each.nodes, limits.RING, "" if each.rail is None else devices[each.rail]): each for each in measurements
        }
        measured = self._nccl(f"the search, round {number}", list(by_words))
        return {by_words[words]: results.bandwidth(value) for words, value in measured.items()}

    def _expected(self, nodes: int) -> float | None:
        """GB/s of a healthy group with a ring; None where the measurements themselves show it better."""
        shape = SHAPES.get(self._pool.shape.name)
        published = shape.busbw.get((_PAIR, limits.RING)) if shape else None
        before = baseline.figure(self._before, self._pool.shape.name, _PAIR, limits.RING)
        if published or before or nodes >= _ENOUGH:
            return published or before
        limit = limits.choose(shape, collectives.ALL_REDUCE, limits.RING, nodes, self._pool.shape.gpus)
        return None if limit is None else limit.good

    def _nccl(
        self, what: str, runs: Sequence[tuple[tuple[str, ...], str, str]]
    ) -> dict[tuple[tuple[str, ...], str, str], Nccl]:
        """The results by nodes, algorithm and device."""
        jobs = [
            plan.nccl(self._pool, self._tools, nodes, algorithm, device, number=number)
            for number, (nodes, algorithm, device) in enumerate(runs)
        ]
        answers = self._run(what, jobs) if jobs else {}
        shape = self._pool.shape
        return {
            words: results.nccl(
                answers.get(str(number), Missing("it was not measured")),
                results.expectation(shape.name, len(words[0]), shape.gpus, words[1]),
                results.NOT_IN_IMAGE if self._pool.resource else results.BUILD,
            )
            for number, words in enumerate(runs)
        }

    # --- judging -----

    def findings(self, before: Mapping[str, Any] | None = None) -> tuple[Finding, ...]:
        """What was found.

        Args:
            before: the baseline, if it is another one by now.
        """
        self._before = self._before if before is None else before
        return (*self._node_findings(), *self._network_findings())

    def entries(self, recorded: str) -> dict[str, Any]:
        """What was measured, as entries of a baseline. Results that are wrong are none.

        Args:
            recorded: the time, as a text.
        """
        values: dict[str, list[float]] = {}
        groups = [(1, {limits.DEFAULT: value}) for value in self._by_node.values()]
        groups += [(_PAIR, by_algorithm) for by_algorithm in self._by_pair.values()]
        groups += [(len(self._of_whole), self._whole)] if len(self._of_whole) > _PAIR else []
        for nodes, by_algorithm in groups:
            for algorithm, value in by_algorithm.items():
                if busbw := results.bandwidth(value):
                    values.setdefault(baseline.key(self._pool.shape.name, nodes, algorithm), []).append(busbw)
        return {key: baseline.entry(result, recorded) for key, result in values.items()}

    def _node_findings(self) -> Iterator[Finding]:
        others = self._of_others([{limits.DEFAULT: value} for value in self._by_node.values()])
        for node in self._nodes:
            value = self._by_node.get(node) or self._silent.get(node)
            measurements = {checks.DEFAULT: value, **others, **self._of_before(1)}
            yield evaluate(checks.NODE, node, measurements, self._pool)

    def _network_findings(self) -> Iterator[Finding]:
        if not self._by_pair:
            yield from self._without_pairs(checks.PAIR)
        others = self._of_others(list(self._by_pair.values()))
        for pair, by_algorithm in self._by_pair.items():
            measurements = {**_named(by_algorithm), **others, **self._of_before(_PAIR)}
            yield evaluate(checks.PAIR, plan.pair_name(pair), measurements, self._pool)
        if not self._write:
            yield from self._without_pairs(checks.WRITE_BANDWIDTH)
            yield from self._without_pairs(checks.CONNECTION)
        for pair, written in self._write.items():
            yield evaluate(checks.WRITE_BANDWIDTH, plan.pair_name(pair), {checks.WRITE: written}, self._pool)
            yield evaluate(checks.CONNECTION, plan.pair_name(pair), {checks.PING: self._ping[pair]}, self._pool)
        for check in (checks.FABRIC_NODE, checks.FABRIC_RAIL):
            for node in self._nodes:
                why = self._silent.get(node) or self._left_out.get(node)
                yield evaluate(check, node, {checks.SEARCH: why or self._search}, self._pool)
        yield evaluate(checks.FABRIC_LINKS, self._pool.name, {checks.SEARCH: self._search}, self._pool)
        yield self._pool_finding()

    def _without_pairs(self, check: Check[MeasuredPool]) -> Iterator[Finding]:
        """The finding where there is no pair: one, of the pool."""
        why = Missing("fewer than two nodes could be measured")
        yield evaluate(check, self._pool.name, dict.fromkeys(check.needs, why), self._pool)

    def _pool_finding(self) -> Finding:
        measurements = _named(self._whole) or dict.fromkeys(
            checks.POOL.needs, Missing("fewer than two good nodes could be measured")
        )
        measurements |= self._of_before(len(self._of_whole))
        finding = evaluate(checks.POOL, self._pool.name, measurements, self._pool)
        absent = [node for node in self._nodes if node not in self._of_whole]
        if self._whole and absent:
            finding = replace(finding, message=f"{finding.message}; without {', '.join(absent)}")
        return finding

    def _of_others(self, groups: Sequence[Mapping[str, Nccl]]) -> dict[str, Any]:
        means = {}
        for algorithm in _ALGORITHMS:
            known = [value for group in groups if (value := results.bandwidth(group.get(algorithm, Missing(""))))]
            means[checks.OTHERS + _name(algorithm)] = baseline.of_others(known)
        return means

    def _of_before(self, nodes: int) -> dict[str, Any]:
        shape = self._pool.shape.name
        return {
            checks.BEFORE + _name(algorithm): baseline.figure(self._before, shape, nodes, algorithm)
            for algorithm in _ALGORITHMS
        }


def _without_common_failure(by_node: Mapping[str, Nccl]) -> dict[str, Nccl]:
    """Where NCCL works on no node, it may be the software that all have, and no node counts as bad."""
    if any(isinstance(value, NcclVerdict) for value in by_node.values()):
        return dict(by_node)
    return {
        node: Missing(f"{value.reason}; no other node shows that NCCL works")
        if isinstance(value, RefusedMeasurement)
        else value
        for node, value in by_node.items()
    }


def _named(by_algorithm: Mapping[str, Nccl]) -> dict[str, Any]:
    return {_name(algorithm): value for algorithm, value in by_algorithm.items()}


def _name(algorithm: str) -> str:
    return checks.RING if algorithm == limits.RING else checks.DEFAULT


def _why_not(state: str | None) -> Missing:
    if state is None:
        return Missing("the scheduler does not know it")
    return Missing(f"it is {state}, and only idle nodes are measured")
