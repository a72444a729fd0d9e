"""Judges the output of NVIDIA's nccl-tests: did all ranks measure together, was the result right, was it fast enough.

`gpucluster-agent nccl judge FILE --shape S --nodes N` needs no cluster. `text_output` and `json_output` parse what the
programs write into the types of `measurement`; `collectives` holds the arithmetic of each operation; `shape_limits` is
generated from `gpucluster/shapes.toml`; `limits` chooses what a result is compared with; `judge` gives the verdict.
Everything but `__main__` is pure. May import the standard library and this folder only.
"""
