"""``python -m pyro_bnn`` is the command ``pyro-bnn``."""

import sys

from pyro_bnn.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
