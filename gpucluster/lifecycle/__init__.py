"""The phases of a cluster's life: provision, configure the hosts, resize, bake images, tear down elastic nodes.

Each phase takes what it needs as constructor arguments; `gpucluster.cluster` puts them together. May import
everything below it; only `cluster` and the command line may import it.
"""
