"""Programs that run on the hosts of a cluster: users, backup, container images and the other host-side commands.

The package is delivered as one zipapp, `/usr/local/bin/gpucluster-agent` (`gpucluster.artifacts.agent_archive` builds
it). It runs on the host's own Python, 3.9 or later, so it uses the standard library only and imports nothing of
gpucluster but itself. `rules/` holds pure rules that `gpucluster.spec` imports as well. `__main__` lists the commands.
"""
