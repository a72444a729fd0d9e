"""The sections of a cluster.yml as pydantic models: one module for each part of the file.

fields.py holds the patterns and types of single values. A section knows its own keys only; rules between keys are
in `spec.rules`. May import `shapes`, `controller.rules` and the other sections.
"""
