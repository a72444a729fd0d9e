"""What the server of one home knows: rows in SQLite, the identity of the tenancy, faults, background work, and the shapes of requests
and replies that every service shares. May import the protocol of `engine`; it starts nothing itself.
"""
