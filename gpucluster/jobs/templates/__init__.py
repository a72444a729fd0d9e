"""The workloads. Each folder is one: a package with the constant TEMPLATE, `body.sh.j2`, and in `files` what lies
beside the script. May import `model`, and what judges: `measuring` and the agent.
"""
