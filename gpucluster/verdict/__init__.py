"""Whether a cluster is good, and which host is not: every check of `verify`, and what its results mean together.

Pure: facts, reports of hosts and measurements in, findings and a verdict out. `registry` has all checks, also those
that hosts run themselves; `hosts` and `scheduler` declare those of whole clusters; `measurements` describes what each
of them gets; `reports` reads what hosts have found themselves; `verdict` puts findings together. May import what is
below `handover`.
"""
