"""Collectors: each makes one measurement of this host, or gives the reason why there is none. They judge nothing.

A collector gets a `Host` and the seconds that it has. What it returns is JSON, or `Missing`. It runs in a process of
its own, so that it may hang (see `side_by_side`).
"""
