"""Known faults of versions: a dated table of advisories, and what of it concerns the software that hosts run. Pure.

`advisories.toml` is the table, `table` reads it, `versions` compares versions, `evaluate` reports what is known.
"""
