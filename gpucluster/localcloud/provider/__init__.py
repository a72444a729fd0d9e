"""The stand-in for Terraform's provider oracle/oci.

Terraform starts it as a process of its own, several times in one run, so slow imports are avoided or come late. Imports
no other folder of the local cloud: it uses the REST API only.
"""
