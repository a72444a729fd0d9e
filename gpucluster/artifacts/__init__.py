"""Files that hosts need and this machine brings: release files (Enroot, Pyxis, nerdctl) and Python wheels.

`catalogue` says which files a cluster needs, `sources` where they come from, `store` keeps what was fetched under its
checksum, `releases` and `wheels` put together what one cluster gets. May import `spec` and what lies below it; knows
nothing of the cloud or of Terraform.
"""
