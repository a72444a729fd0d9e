"""Finds what is bad in the network between nodes: a node, one of its rails, a pair of nodes, a switch or its uplink.

Pure: measurements of groups of nodes in, the next measurements or a verdict out. `model` has the types; `rounds` runs
parts of a search side by side; `measuring` decides whether a result is good, and repeats what is in doubt; `splitting`
narrows a bad group down; `diagnosis` is the whole search. Who runs the measurements (Slurm, ssh, a simulator) is not
known here. May import the standard library and this folder only.
"""
