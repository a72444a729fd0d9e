"""Checks of a host: what is measured (`collect`), what it means (`judges`, pure), what is checked when (`registry`).

`model` has the types, which the operator's side uses for the checks of the whole cluster, too.
"""
