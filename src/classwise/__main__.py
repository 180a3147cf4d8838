"""``python -m classwise`` is the command line."""

import sys

from classwise.cli import main

if __name__ == "__main__":
    sys.exit(main())
