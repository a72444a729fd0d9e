"""The facts of a host that `gpucluster verify` and `apply` collect; gpucluster/verdict/ judges them.

The operator's machine sends these modules with each request (`artifacts.agent_archive.of_facts`): the agent of a host
may be older, or missing.
"""
