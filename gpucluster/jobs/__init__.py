"""Workloads as templates: their scripts for each launcher, what they need, and what their results mean.

Pure: text in, text out. `operations` submits what is made here. `model` has the types, `registry` finds templates and
launchers in their folders, `render` makes files of a job. Imports `measuring`, `shapes`, `pages` and folders below.
"""
