"""Tests of `stopadvisor.engines`."""
