"""What the programs of the worked examples printed, with their numbers; long lines between are left out."""
# ruff: noqa: E501 - the lines of others

from __future__ import annotations

#: ib_write_bw --report_gbits --report-both -D60 -F -R, the client's side (seed 003).
IB_WRITE_BW = """\
---------------------------------------------------------------------------------------
                    RDMA_Write BW Test
 Dual-port       : OFF          Device         : irdma0
 Number of qps   : 1            Transport type : IB
 Connection type : RC           Using SRQ      : OFF
 Mtu             : 1024[B]
 Link type       : Ethernet
 GID index       : 1
 rdma_cm QPs     : ON
 Data ex. method : rdma_cm
---------------------------------------------------------------------------------------
 local address: LID 0x01 QPN 0x00c3 PSN 0x19cf42
 GID: 00:00:00:00:00:00:00:00:00:00:255:255:10:100:100:02
 remote address: LID 0x01 QPN 0x00c3 PSN 0x7f64d6
 GID: 00:00:00:00:00:00:00:00:00:00:255:255:10:100:100:01
---------------------------------------------------------------------------------------
 #bytes     #iterations    BW peak[Gb/sec]    BW average[Gb/sec]   MsgRate[Mpps]
 65536      1324156          0.00               23.14              0.044138
---------------------------------------------------------------------------------------
"""
#: rping -cdvVa ADDRESS -C 3, the client's side (seed 003).
RPING = """\
ESTABLISHED
rdma_connect successful
ping data: rdma-ping-0: ABCDEFGHIJKLMNOPQRSTUVWXYZ[\\]^_`abcdefghijklmnopqr
send completion
ping data: rdma-ping-1: BCDEFGHIJKLMNOPQRSTUVWXYZ[\\]^_`abcdefghijklmnopqrs
ping data: rdma-ping-2: CDEFGHIJKLMNOPQRSTUVWXYZ[\\]^_`abcdefghijklmnopqrst
destroy cm_id 0x558db36d9270
"""
#: mpirun -H a:1,b:1 ./all_reduce_perf -b 10GB -e 10GB -g 1 (seed 003).
NCCL_OVER_ETHERNET = """\
[1715554417.351542] [gpu-pod1:51731:0]        rc_iface.c:513  UCX  ERROR ibv_create_srq() failed: Operation not supported
[gpu-pod1:51731] pml_ucx.c:309  Error: Failed to create UCP worker
[1715554417.882585] [gpu-pod0:52047:0]        rc_iface.c:513  UCX  ERROR ibv_create_srq() failed: Operation not supported
[gpu-pod0:52047] pml_ucx.c:309  Error: Failed to create UCP worker
# nThread 1 nGpus 1 minBytes 10737418240 maxBytes 10737418240 step: 1048576(bytes) warmup iters: 5 iters: 20 agg iters: 1 validation: 1 graph: 0
#
# Using devices
#  Rank  0 Group  0 Pid  52047 on   gpu-pod0 device  0 [0x14] NVIDIA A100 80GB PCIe
#  Rank  1 Group  0 Pid  51731 on   gpu-pod1 device  0 [0x14] NVIDIA A100 80GB PCIe
gpu-pod0:52047:52047 [0] NCCL INFO NCCL_SOCKET_FAMILY set by environment to AF_INET
gpu-pod0:52047:52047 [0] NCCL INFO NCCL_SOCKET_IFNAME set by environment to net1
NCCL version 2.18.5+cuda12.2
gpu-pod0:52047:52056 [0] NCCL INFO NET/IB : Using [0]irdma0:1/RoCE [RO]; OOB net1:10.100.100.1<0>
gpu-pod0:52047:52056 [0] NCCL INFO Using network IBext
gpu-pod0:52047:52056 [0] NCCL INFO Channel 00/0 : 1[0] -> 0[0] [receive] via NET/IBext/0
gpu-pod0:52047:52056 [0] NCCL INFO comm 0x564b10cb5ca0 rank 0 nranks 2 cudaDev 0 nvmlDev 0 busId 14000 commId 0xd304be7ee9fbd4fb - Init COMPLETE
#
#                                                              out-of-place                       in-place
#       size         count      type   redop    root     time   algbw   busbw #wrong     time   algbw   busbw #wrong
#        (B)    (elements)                               (us)  (GB/s)  (GB/s)            (us)  (GB/s)  (GB/s)
 10737418240    2684354560     float     sum      -1  3825027    2.81    2.81      0  3825795    2.81    2.81      0
gpu-pod0:52047:52047 [0] NCCL INFO comm 0x564b10cb5ca0 rank 0 nranks 2 cudaDev 0 busId 14000 - Destroy COMPLETE
# Out of bounds values : 0 OK
# Avg bus bandwidth    : 2.80687
#
"""


def horovod(ranks: int, iterations: tuple[float, ...], mean: str, total: str, tag: str = "") -> str:
    """The output of Horovod's benchmark, as seeds 000 and 004 show it."""
    lines = [
        "Model: ResNet50",
        "Batch size: 32",
        f"Number of GPUs: {ranks}",
        "Running warmup...",
        "Running benchmark...",
    ]
    lines += [f"Iter #{number}: {speed} img/sec per GPU" for number, speed in enumerate(iterations)]
    lines += [f"Img/sec per GPU: {mean}", f"Total img/sec on {ranks} GPU(s): {total}"]
    return "".join(f"{tag}{line}\n" for line in lines)


_ONE = (598.3, 598.7, 597.6, 600.6, 599.3, 599.5, 598.4, 601.3, 603.7, 602.8)
_TWO = (572.9, 574.1, 573.8, 573.0, 573.1, 572.5, 573.6, 574.2, 571.6, 572.9)
_P100 = (176.7, 176.2, 174.8, 173.6, 175.7, 174.8, 175.0, 173.4, 170.8, 177.8)
#: Seed 000: horovodrun on one node, mpirun on two.
HOROVOD_ONE_NODE = horovod(8, _ONE, "600.0 +-3.8", "4800.1 +-30.3", "[1,0]<stdout>:")
HOROVOD_TWO_NODES = horovod(16, _TWO, "573.2 +-1.5", "9170.8 +-23.4")
#: Seed 004: four nodes with two P100 each.
HOROVOD_P100 = horovod(8, _P100, "174.9 +-3.7", "1399.1 +-29.3")
#: Seed 002: the outputs of both workers, one after the other.
MNIST = (
    """\
Downloading data from https://storage.googleapis.com/tensorflow/tf-keras-datasets/mnist.npz
11490434/11490434 [==============================] - 0s 0us/step
Epoch 1/3
70/70 [==============================] - 10s 67ms/step - loss: 2.2653 - accuracy: 0.1280
Epoch 2/3
70/70 [==============================] - 4s 64ms/step - loss: 2.1829 - accuracy: 0.2941
Epoch 3/3
70/70 [==============================] - 5s 65ms/step - loss: 2.0823 - accuracy: 0.4592
"""
    * 2
)
