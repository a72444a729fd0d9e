"""Says of each job on a node with GPUs whether it works, waits, is hung, has a straggler, or leaves its GPUs idle.

`ras` reads the answers of NCCL's RAS port and `client` gets them, `judge` decides from a series of looks (pure),
`collect` reads this node, and `kept` has the file that the exporter reads.
"""
