"""How a measurement becomes a job: the words for srun, what runs on the nodes, and its environment. Pure.

What runs on the nodes are two shell scripts, because a container has neither Python nor this program for certain.
"""

from __future__ import annotations

from collections.abc import Mapping

from gpucluster.controller.measure.request import NCCL, Request
from gpucluster.node_agent.nccl.causes import IN_USE

#: The beginning of the names of all jobs.
PREFIX = "gpucluster-measure-"
#: A job with a large value waits behind others; only a smaller one needs a privilege.
_NICE = 100_000
#: Where the sample job of a user has built nccl-tests.
_BUILT_BY_SAMPLE = "nccl_tests/nccl-tests/build/all_reduce_perf"
#: What the script prints where there is no program, for `gpucluster.measuring.results`.
NO_PROGRAM = "gpucluster: no all_reduce_perf"
NO_PERFTEST = "gpucluster: no ib_write_bw"
NO_RPING = "gpucluster: no rping"
NO_DEVICE = "gpucluster: no RDMA device"
#: Before the result of each device, and before that of rping, with its status.
DEVICE = "gpucluster: device"
PING = "gpucluster: rping"
#: The rate of the device's link in Gb/s follows, as the kernel reports it.
RATE = "gpucluster: rate"
SYSFS = "/sys/class/infiniband"
PINGS = 3

# One rank of each node shows which network NCCL uses; all of them would print hundreds of megabytes on large clusters.
# A rank alone has no MPI to tell it its number: SLURM_PROCID. In a pod of Kubernetes there is one process.
# The node is the job's alone: whatever else uses its GPUs is not a part of the job, and the other ranks have the
# program's name. A broken GPU may keep nvidia-smi from answering.
NCCL_SCRIPT = f"""
program=$1; shift
for each in $program all_reduce_perf "$HOME/{_BUILT_BY_SAMPLE}"; do
    found=$(command -v "$each") && break
done
if [ -z "$found" ]; then
    [ "${{SLURM_PROCID:-0}}" != 0 ] || echo "{NO_PROGRAM}"
    exit 127
fi
if [ "${{SLURM_LOCALID:-0}}" = 0 ]; then
    export NCCL_DEBUG=INFO NCCL_DEBUG_SUBSYS=INIT,NET,ENV
    timeout 10 nvidia-smi --query-compute-apps=pid,process_name --format=csv,noheader 2>/dev/null |
        grep -vF "${{found##*/}}" |
        sed -n "s|^\\([0-9][0-9]*\\), \\(.*\\)|{IN_USE} ${{SLURMD_NODENAME:-$(hostname)}}: \\2 (process \\1)|p"
else
    export NCCL_DEBUG=WARN
fi
exec "$found" "$@"
"""

# The first node serves one device after the other; the second connects to it as soon as it listens. The two agree by
# the number of the device: a port each. A server without a connection ends by itself. The address of the first
# node's device, which rping and connections by rdma_cm need, is in what ib_write_bw prints last: a GID of RoCE is an
# IPv4 address.
#
# Arguments: the name of the first node, then the devices; instead of a device @NAME, that of a network interface, or
# `all`. In the environment, each of them optional: IB_WRITE_OPTIONS; GID_INDEX, where an empty one leaves the choice to
# perftest; RDMA_CM=1, where the result is that of a connection by rdma_cm (-R); LATENCY=1 for ib_write_lat; PATIENCE,
# the seconds of one measurement.
RDMA_SCRIPT = f"""
server=$1; shift
me=${{SLURMD_NODENAME:-$(hostname)}}
options=${{IB_WRITE_OPTIONS--q 2}}
index=${{GID_INDEX-3}}
index=${{index:+-x $index}}
patience=${{PATIENCE:-30}}
for program in ib_write_bw ${{LATENCY:+ib_write_lat}}; do
    if ! command -v "$program" >/dev/null 2>&1; then
        echo "{NO_PERFTEST} on $me"
        exit 127
    fi
done
ulimit -l unlimited 2>/dev/null
# Until the other side listens. 124: it has connected, and nothing came any more.
patiently() {{
    try=0
    until output=$(timeout "$patience" "$@" 2>&1); do
        status=$?
        [ "$status" != 124 ] && [ "$try" -lt 40 ] || return "$status"
        try=$((try + 1)); sleep 0.5
    done
}}
serve() {{
    timeout "$((patience + 10))" "$@" >/dev/null 2>&1
}}
of_interface() {{
    for folder in {SYSFS}/*; do
        if [ -e "$folder/device/net/$1" ] || grep -qsx "$1" "$folder"/ports/1/gid_attrs/ndevs/*; then
            echo "${{folder##*/}}"
            return
        fi
    done
    echo "$1"
}}
if [ "$*" = all ]; then
    for folder in {SYSFS}/*; do
        [ ! -e "$folder" ] || set -- "$@" "${{folder##*/}}"
    done
    shift
fi
if [ $# = 0 ]; then
    echo "{NO_DEVICE} on $me"
    exit 127
fi
port=18515
for device in "$@"; do
    case $device in @*) device=$(of_interface "${{device#@}}") ;; esac
    # A connection by rdma_cm needs the address of the first node's device, which a short run without it prints.
    if [ -n "$RDMA_CM" ]; then run="$index -n 5"; else run="$index $options"; fi
    # shellcheck disable=SC2086  # the options are words
    if [ "${{me%%.*}}" = "${{server%%.*}}" ]; then
        serve ib_write_bw -F $run --report_gbits -d "$device" -p "$port"
        [ -z "$RDMA_CM" ] || serve ib_write_bw -F $options --report_gbits -R -d "$device" -p "$((port + 400))"
        [ -z "$LATENCY" ] || serve ib_write_lat -F $index -d "$device" -p "$((port + 200))"
        timeout 20 rping -s -C {PINGS} -p "$((port + 1000))" >/dev/null 2>&1
    else
        echo "{DEVICE} $device"
        echo "{RATE} $device $(sed 's/ .*//' "{SYSFS}/$device/ports/1/rate" 2>/dev/null)"
        patiently ib_write_bw -F $run --report_gbits -d "$device" -p "$port" "$server"
        address=$(echo "$output" | sed -n 's/.* GID: .*:255:255:\\([0-9:]*\\) *$/\\1/p' | tail -n 1 |
            awk -F: '{{ printf "%d.%d.%d.%d", $1, $2, $3, $4 }}')
        if [ -n "$RDMA_CM" ] && [ -n "$address" ]; then
            patiently ib_write_bw -F $options --report_gbits -R -d "$device" -p "$((port + 400))" "$address"
        elif [ -n "$RDMA_CM" ]; then
            output="no address of $server was found: $output"
        fi
        echo "$output"
        if [ -n "$LATENCY" ]; then
            patiently ib_write_lat -F $index -d "$device" -p "$((port + 200))" "$server"
            echo "$output"
        fi
        if ! command -v rping >/dev/null 2>&1; then
            echo "{NO_RPING} on $me"
        elif [ -n "$address" ]; then
            patiently rping -c -v -C {PINGS} -a "$address" -p "$((port + 1000))"
            echo "{PING} $device $?"
            echo "$output"
        fi
    fi
    port=$((port + 1))
done
"""


def argv(request: Request, name: str) -> list[str]:
    """The command line of srun.

    Args:
        name: of the job.
    """
    nccl = request.kind == NCCL
    each = request.gpus if nccl else 1
    words = [
        "srun", f"--job-name={name}", f"--partition={request.partition}", f"--nodelist={','.join(request.nodes)}",
        f"--nodes={len(request.nodes)}", f"--ntasks={each * len(request.nodes)}", f"--ntasks-per-node={each}",
        # No other job may disturb it, and it may disturb no other job.
        "--exclusive", "--mem=0", f"--nice={_NICE}", f"--time={request.minutes}",
        # Threads of NCCL choose their processors themselves.
        "--cpu-bind=none", "--kill-on-bad-exit=1", "--chdir=/", "--input=none", "--quit-on-interrupt",
    ]  # fmt: skip
    if not nccl:
        script, arguments = RDMA_SCRIPT, (request.nodes[0], *request.devices)
        return [*words, "--mpi=none", "sh", "-c", script, "measure", *arguments]
    words += [f"--gpus-per-node={each}", "--gpu-bind=none"]
    words += [f"--mpi={request.mpi}"] if request.mpi else []
    if request.image:
        words.append(f"--container-image={request.image}")
        folder = request.program.rpartition("/")[0]
        words += [f"--container-mounts={folder}:{folder}"] if folder else []
    return [*words, "sh", "-c", NCCL_SCRIPT, "measure", request.program, *request.arguments]


def settings(request: Request) -> Mapping[str, str]:
    """What the job's environment has besides that of its user."""
    return {
        # MPI only starts the ranks: plain TCP works with every shape.
        "OMPI_MCA_pml": "ob1", "OMPI_MCA_coll_hcoll_enable": "0",
        **request.settings,
    }  # fmt: skip
