"""Rules that nodes share with the controller and the operator's side: devices, labels, MIG, reasons of a drain.

Pure: nothing here touches the system. Those that no node needs are in `gpucluster.controller.rules`.
"""
