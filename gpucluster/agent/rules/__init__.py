"""Rules for the names, ids and ssh keys that users may have. Pure: nothing here touches the system.

The agent checks requests with them on the controller, and `gpucluster.spec` checks cluster.yml with them, so that both
accept the same. Modules here import the standard library and each other.
"""
