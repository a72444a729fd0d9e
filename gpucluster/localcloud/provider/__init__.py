"""The stand-in for Terraform's provider oracle/oci. Terraform starts it as a process of its own, several times in one run, so modules
that import slowly are imported late. Imports nothing else of the local cloud: it knows the API by its REST calls only.
"""
