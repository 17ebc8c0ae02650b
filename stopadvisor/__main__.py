"""The command `stopadvisor`, as a script and as `python -m stopadvisor`."""

from __future__ import annotations

import sys

__all__ = ["main"]


def main() -> int:
    """Run one command; an interrupt while it is still being imported ends in silence, too."""
    try:
        from stopadvisor.cli.main import main as run
    except KeyboardInterrupt:
        return 130
    return run()


if __name__ == "__main__":
    sys.exit(main())
