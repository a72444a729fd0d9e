"""Workloads as templates: their scripts for each launcher, what they need, and what their results mean.

Pure: text in, text out. `operations` submits what is made here. Imports `measuring`, `shapes`, `pages` and folders below.
"""
