"""The people of a cluster, on its controller: the directory, homes, keys, associations with Slurm, and their end.

`requests` is the door for programs, `terminal` the one for people. What is decided is decided in `names`, `wishes`,
`state` and `plan`, which touch nothing; `service` and, for those who go, `leaving` do what was decided, with what is in
`controller`. `homes` is root's side of a home, `inside` its owner's.
"""
