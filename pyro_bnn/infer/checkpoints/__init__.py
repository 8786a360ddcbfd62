"""The state of a run on disk: written whole, tied to its run, taken up again."""
