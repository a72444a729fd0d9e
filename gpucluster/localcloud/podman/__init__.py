"""Calls of Podman, and what this host allows. Imports nothing else of the local cloud."""
