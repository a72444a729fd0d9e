"""An image rolls through a pool: which nodes get it next, when it is taken back, and how far a rollout is.

Pure: what the nodes of a pool are like and what has happened so far in, the next step out. `record` is what a rollout
stores between two steps; `decide` has the policy and the decision. May import the standard library and `errors`.
"""
