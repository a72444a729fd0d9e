"""The users of a cluster, on its controller: directory entries, homes, ssh keys and Slurm associations.

`requests` answers programs (JSON), `cli` is the command line. `values`, `desired`, `state` and `plan` decide and touch
nothing. `service` carries out what was decided, `access` enables, disables and removes users; both use what is in
`controller`. `homes` is root's side of a home directory, `home_contents` its owner's. `backup/` imports `config`,
`ldif`, `lock` and `state` from here.
"""
