"""The state of one home: rows in SQLite, the tenancy's identity, injected faults and background work.

Also the requests and replies that every service shares. May import the protocol of `engine`, and starts nothing itself.
"""
