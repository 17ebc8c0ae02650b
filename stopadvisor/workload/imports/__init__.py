"""Logs of evaluation programs as workloads, a module for each program's format."""

__all__ = ["gather", "logged", "registry", "tables"]
