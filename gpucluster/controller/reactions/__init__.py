"""What follows when a job is hung or leaves its GPUs idle: a line in its output, and where it is configured, its end.

`policy` decides (pure) by what watchers of nodes report (`gpucluster.node_agent.watch.message`), `jobs` asks Slurm and
tells it, and `control` carries out each act once. The health service of the controller runs it.
"""
