"""What follows when a job is hung or leaves its GPUs idle: a line in its output, and where it is wanted, its end.

`message` is what a node's watcher says to the controller, `policy` decides (pure), `jobs` asks Slurm and tells it, and
`control` carries out each act once. The health service of the controller runs it.
"""
