"""Terraform: finding and running the program, reading its output, its state and the backends of the state.

`runner` runs commands and is the only module that imports python-terraform. `program` finds the program, `state` and
`backends` own the state. `plan`, `messages`, `diagnosis`, `summary` and `addresses` are pure: they read what Terraform
prints. May import `spec` and what is below it. Nothing here knows the cloud's SDK.
"""
