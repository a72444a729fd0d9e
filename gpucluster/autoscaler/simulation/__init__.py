"""The autoscaler on a virtual clock: models of Slurm and of the cloud around the real `decide.plan.decide`.

`slurm_model`, `cloud_model` and `executor_model` are models. They follow measurements of real Slurm and OCI's
documentation, and each docstring names the limits of its model. What a simulation shows is a fact about `decide`, not
about Slurm or OCI.
This folder imports `gpucluster.autoscaler.decide`, never `gpucluster.autoscaler.daemon`.
"""
