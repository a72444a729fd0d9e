"""Programs that run on every host of a cluster: checks, metrics, records of jobs, host certificates, and others.

The package is delivered as one zipapp, `/usr/local/bin/gpucluster-agent` (`gpucluster.artifacts.agent_archive` builds
it); that of the controller has `gpucluster.controller` as well. It runs on the host's own Python, 3.9 or later, so it
uses the standard library only and imports nothing of gpucluster but itself. What both packages use is here. Every
module is needed by a command of nodes; `__main__` lists them.
"""
