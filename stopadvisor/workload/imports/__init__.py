"""Logs of evaluation programs as workloads, a module for each program's format."""

__all__ = ["inspect_log", "logged", "tables"]
