"""Studies: each of the paper's constructions over finished runs, one module per study.

A study reads sources and returns tables; it asks no model, writes no file and formats nothing.
"""
