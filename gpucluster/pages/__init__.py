"""HTML pages that stand alone: their frame, tables and plots, without a domain. Pure.

One file each, without scripts and without anything from elsewhere, for light and dark screens of any width, and for
paper. The same input gives the same text. Imports `text`.
"""
