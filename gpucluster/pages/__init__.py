"""HTML pages that stand alone: their frame, tables and plots, without a domain. Pure.

One file each, without scripts from elsewhere, for light and dark screens of any width. Imports `text`.
"""
