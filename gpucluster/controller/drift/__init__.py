"""Drift that the controller sees: Slurm against its files, the directory against what was written by `cluster`, and the
hosts that it can reach against what apply left there. It reads, and changes nothing.
"""
