"""The phases of a cluster's life: provision, find the hosts, configure them, resize, bake images, tear down.

Each phase takes what it needs as constructor arguments; `gpucluster.cluster` puts them together. Where an argument is a
callable that makes a client (`Callable[[], BakedImages]`), the phase calls it when it needs the client, and not before:
the local cloud has no address and no credentials until a run has started it. May import everything below it; only
`cluster` and the command line may import it.
"""
