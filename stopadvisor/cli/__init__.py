"""The command line: each module parses its options, calls one use case and prints the result."""

__all__ = ["main"]
