"""Blocks of the READMEs that are made from code: a module here for each wing that has some.

A module names its blocks in `BLOCKS`, each with a function that returns markdown; `tests.generate`
finds them, and writes them between their marks.
"""
