"""The base image of all instances: its recipe, its files and the Debian mirror. May import `podman`."""
