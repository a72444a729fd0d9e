"""The command `simulate`: its arguments, the policies that they describe, and the output."""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Sequence
from dataclasses import replace
from itertools import product
from pathlib import Path

from gpucluster.autoscaler.policy import Policy
from gpucluster.autoscaler.simulation.report import as_json, table
from gpucluster.autoscaler.simulation.simulator import BOOT_SECONDS, IDLE_TIMEOUT, simple_policy, simulate, with_nodes
from gpucluster.autoscaler.simulation.traces import FORMATS, read_traces
from gpucluster.errors import InputError

_MOST_NODES = 100_000


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments of the program's subcommand `simulate`."""
    parser.description = "Run past jobs against a policy: how long would they wait, and what would it cost?"
    parser.add_argument("trace", nargs="+", type=Path, help="files with jobs, read as one trace; may be gzipped")
    parser.add_argument("--format", choices=FORMATS, default="sacct", help="of the trace (default: sacct)")
    parser.add_argument("--processors-per-node", type=_count, default=1, metavar="N", help="for swf (default: 1)")
    parser.add_argument(
        "--policy", type=Path, metavar="FILE", help="autoscaler.json of a cluster; else one simple pool"
    )
    parser.add_argument("--nodes", type=_count, nargs="+", metavar="N", help="of each pool; several are compared")
    parser.add_argument(
        "--idle-timeout",
        type=_seconds,
        nargs="+",
        default=[IDLE_TIMEOUT],
        metavar="SECONDS",
        help=f"until an idle node is removed; several are compared (default: {IDLE_TIMEOUT:g})",
    )
    parser.add_argument(
        "--boot-seconds",
        type=_seconds,
        default=BOOT_SECONDS,
        metavar="SECONDS",
        help=f"from a launch to a node that takes jobs (default: {BOOT_SECONDS:g})",
    )
    parser.add_argument("--price", type=_amount, metavar="PRICE", help="of a node and hour, in any currency")
    parser.add_argument("--max-cost-per-hour", type=_amount, metavar="PRICE", help="the policy's limit")
    parser.add_argument("--fault-rate", type=_rate, default=0.0, metavar="P", help="of each kind of fault (default: 0)")
    parser.add_argument("--seed", type=int, default=0, help="the same seed, the same numbers (default: 0)")
    parser.add_argument("--output", choices=("text", "json"), default="text", help="(default: text)")


def run(args: argparse.Namespace) -> int:
    """Run `simulate`, and write the result to stdout.

    Raises:
        InputError: the policy or the trace is wrong.
    """
    trace = read_traces(args.trace, args.format, processors_per_node=args.processors_per_node)
    policies = _policies(args)
    reports = [
        simulate(
            trace,
            policy,
            idle_timeout=idle_timeout,
            boot_seconds=args.boot_seconds,
            seed=args.seed,
            fault_rate=args.fault_rate,
        )
        for policy, idle_timeout in product(policies, args.idle_timeout)
    ]
    if args.output == "json":
        sys.stdout.write(as_json(reports, jobs=len(trace.jobs), left_out=trace.left_out, seed=args.seed))
    else:
        sys.stdout.write(f"{len(trace.jobs)} jobs; {trace.left_out} lines without a job that ran\n{table(reports)}")
    return 0


def _policies(args: argparse.Namespace) -> Sequence[Policy]:
    if args.policy is None:
        if not args.nodes:
            raise InputError("the number of nodes is missing", hint="Pass --nodes N, or --policy FILE")
        return [simple_policy(n, price=args.price, max_cost_per_hour=args.max_cost_per_hour) for n in args.nodes]
    policy = Policy.load(args.policy)
    if not policy.pools:
        raise InputError("the policy has no elastic pool", where=str(args.policy), hint="Give a pool max_count > count")
    if args.price is not None:
        policy = replace(policy, prices={pool.shape: args.price for pool in policy.pools.values()})
    if args.max_cost_per_hour is not None:
        policy = replace(policy, limits=replace(policy.limits, max_cost_per_hour=args.max_cost_per_hour))
    return [with_nodes(policy, nodes) for nodes in args.nodes] if args.nodes else [policy]


def _count(text: str) -> int:
    try:
        number = int(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"must be a whole number; got {text!r}") from None
    if not 0 < number <= _MOST_NODES:
        raise argparse.ArgumentTypeError(f"must be from 1 to {_MOST_NODES}")
    return number


def _amount(text: str) -> float:
    try:
        number = float(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"must be a number; got {text!r}") from None
    if not math.isfinite(number) or number < 0:
        raise argparse.ArgumentTypeError("must be a number, and not negative")
    return number


def _seconds(text: str) -> float:
    number = _amount(text)
    if number == 0:
        raise argparse.ArgumentTypeError("must be more than 0")
    return number


def _rate(text: str) -> float:
    number = _amount(text)
    if number >= 1:
        raise argparse.ArgumentTypeError("must be from 0 to less than 1")
    return number
