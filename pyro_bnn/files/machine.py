"""What this machine has, as a bound on what a file may declare."""

from __future__ import annotations

import os
import sys


def machine_bytes() -> int:
    """Memory of this machine, or no bound where the system does not say."""
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, ValueError, OSError):
        return sys.maxsize
