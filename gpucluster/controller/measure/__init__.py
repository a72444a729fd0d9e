"""Measures nodes by Slurm jobs, for an operator's machine at the other end of a connection to the controller.

`gpucluster-agent measure serve` answers requests, one JSON object a line, until the connection ends; then it cancels
its jobs. It measures and judges nothing. `request` reads the request of a measurement; `launch` makes a job of it;
`jobs` runs jobs, each when its nodes are free; `slurm` asks Slurm; `baseline` keeps what this cluster reached before.
`request` and `launch` are pure.
"""
