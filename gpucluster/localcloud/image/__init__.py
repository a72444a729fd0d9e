"""The base image of all instances: its recipe, its files and the Debian mirror that it is made from. May import `podman`."""
