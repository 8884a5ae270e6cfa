"""``python -m taso_py``: the command line, also where the package is not installed."""

import sys

from taso_py.cli import main

if __name__ == "__main__":
    sys.exit(main())
