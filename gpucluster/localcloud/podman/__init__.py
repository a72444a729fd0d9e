"""Calls of Podman, and what this host allows. Imports no other folder of the local cloud."""
