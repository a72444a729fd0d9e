"""The sections of a cluster.yml as pydantic models: one module for each part of the file.

fields.py holds the patterns and types of single values. A section knows its own keys only; what keys demand of one
another is in `spec.rules`. Imports: `shapes`, and the other sections.
"""
