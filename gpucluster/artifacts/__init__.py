"""Files that hosts need and this machine provides: release files (Enroot, Pyxis, nerdctl), wheels, and the agent.

`catalogue` names the files that a cluster needs. `sources` are the places that have them, by `http_client` where they
are web servers, and `checksums` reads their lists. `store` has what was downloaded, under its checksum. `lookup` finds
each file, `selection` decides which are taken; `releases` and `wheels` assemble what one cluster gets, in the
folders of `cache`; `agent_archive` builds the agent. May import `spec` and
what is below it; nothing here knows the cloud or Terraform.
"""
