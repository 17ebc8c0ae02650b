"""Mistakes that change nothing, in the wings where most others must be caught."""
