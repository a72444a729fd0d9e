"""The monitor on the controller: Slurm's metrics, what Prometheus scrapes, and the queries to Prometheus.

`slurm_text` (what Slurm's commands print), `slurm_metrics`, `exposition`, `targets` decide, without a clock or files.
`collector`, `server`, `prometheus` and `__main__` have the effects.
"""
