"""Tests; the folder mirrors `stopadvisor`.  Run all checks with `python -m tests`."""
