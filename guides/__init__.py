"""Variational families, each a Pyro guide that also works with ``pyro.infer.SVI`` as it is."""

if __name__ != "pyro_bnn.guides":
    raise ImportError(
        f"this folder is the package 'pyro_bnn.guides', not {__name__!r}: "
        "write 'from pyro_bnn import guides'"
    )
