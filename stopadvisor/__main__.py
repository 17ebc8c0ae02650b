"""`python -m stopadvisor` is the command `stopadvisor`."""

from __future__ import annotations

import sys

from stopadvisor.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
