"""The autoscaler on a virtual clock: models of Slurm and of the cloud around the real `plan.decide`.

`slurm_model`, `cloud_model` and `executor_model` are models. They follow what was measured with real Slurm and what OCI
documents, and say where they stop. What holds here is a fact about `decide`, not about Slurm or OCI.
"""
