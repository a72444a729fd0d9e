"""Pure decisions: an observation of Slurm and the cloud, the saved state and the policy go in, a plan comes out.

The daemon, the dry run, `explain` and the simulation all call the same functions. Nothing here uses a clock, a file, a
thread or a service; the time is an argument. This folder may import `gpucluster.autoscaler.policy`, `gpucluster.slurm`,
`gpucluster.oci` and `gpucluster.text`.
"""
