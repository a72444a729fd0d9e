"""The terraform program: found, checked, run, and its output read; its state and the backends for that.

`runner` runs commands and is the only module that imports python-terraform. `program` finds the program, `state` and
`backends` own the state. `plan`, `messages`, `diagnosis`, `summary` and `addresses` are pure: they read what Terraform
prints. May import `spec` and what is below it; knows nothing of the cloud's SDK.
"""
