"""Data sets: load, split, standardise; the units are remembered."""

from pyro_bnn.data.call import Call
from pyro_bnn.data.dataset import Dataset
from pyro_bnn.data.frames import from_frame
from pyro_bnn.data.loading import load, names
from pyro_bnn.data.split import Split, from_arrays
from pyro_bnn.data.standardise import Standardiser

__all__ = ["Call", "Dataset", "Split", "Standardiser", "from_arrays", "from_frame", "load", "names"]
