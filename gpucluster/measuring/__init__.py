"""What is measured of a pool's GPUs and network, and what the results mean. Pure.

`survey` is all of it for one pool; `plan` makes the measurements, as `gpucluster-agent measure` takes them; `results`
reads what its jobs printed, `perftest` that of ib_write_bw; `checks` declares the checks and judges them; `baseline` is
what a cluster reached before. Who runs the jobs is not known here (`operations.measuring`). May import `shapes`,
`fabric` and the pure folders of `agent`.
"""
