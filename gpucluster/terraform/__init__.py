"""The terraform program: found, checked, run and read; its state, the state's backends, and what its errors mean.

Only `runner` imports python-terraform. May import `spec` and what lies below it; knows nothing of the cloud's SDK.
"""
