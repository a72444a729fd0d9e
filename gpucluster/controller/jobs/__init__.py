"""Jobs that an operator submits for a user, and data sets for them: `gpucluster-agent jobs`, as root on the controller.

`serve` answers requests, one JSON object a line, until the connection ends. The jobs go on then: who asks again, by
the number of a job, sees its state and result. What is in a user's home is done with the rights of that user, in a
child process that has no others (`accounts.work_as`).

`queue` is the interface of a scheduler: of Slurm (`slurm_queue`, by `slurm`) or of Kubernetes (`kubernetes_queue`).
`folder` is the folder of one job in its user's home; `watch` waits for an end;
`requirements` finds requirements that are not met; `datasets` keeps the data sets on the home share.
"""
