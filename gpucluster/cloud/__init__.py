"""OCI as the operator's machine sees it: the SDK client, the two providers (OCI and the local cloud), members of pools,
elastic instances, baked images, the Bastion service, and the resources with a tag.

May import `workspace`, `artifacts`, `spec` and what is below them. Only `client` imports the `oci` SDK, and only
`providers` asks which cloud it is.
"""
