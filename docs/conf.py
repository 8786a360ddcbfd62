"""Settings of the documentation's site; ``make docs`` builds it, offline.

The folder of sources is the repository itself: a page, a notebook, the changelog are read where
they stand, and a link that works among the files works on the site.
"""

import sys
from pathlib import Path

DOCS = Path(__file__).parent
sys.path[:0] = [str(DOCS), str(DOCS.parent)]

import generate  # noqa: E402  # docs/generate.py

import pyro_bnn  # noqa: E402

generate.write(DOCS / "reference" / "made")

project = "pyro_bnn"
copyright = "the pyro_bnn developers"  # noqa: A001  # Sphinx's name
version = release = pyro_bnn.__version__

extensions = ["myst_nb", "sphinx.ext.autodoc", "sphinx.ext.napoleon", "mathml"]
html_math_renderer = "mathml"  # docs/mathml.py: no script, no network
root_doc = "docs/index"
include_patterns = [
    "docs/**",
    "tutorials/*.ipynb",
    "tutorials/research/*.ipynb",
    "tutorials/experiments/README.md",
    "benchmarks/*.md",
    "benchmarks/verdict_rates/README.md",
    "CONTRIBUTING.md",
    "CHANGELOG.md",
]
exclude_patterns = [
    ".*",
    "docs/_build",
    "docs/reference/made/readme",
    "report",
    "build",
    "dist",
    "**/.ipynb_checkpoints",
]
default_role = "py:obj"

nb_execution_mode = "off"  # notebooks are committed with their outputs
myst_enable_extensions = ["dollarmath", "deflist", "fieldlist"]
myst_heading_anchors = 3

toc_object_entries_show_parents = "hide"
autodoc_member_order = "bysource"
autodoc_typehints = "none"  # arguments say their types and shapes in words
autodoc_preserve_defaults = True
napoleon_google_docstring = True
napoleon_numpy_docstring = False
napoleon_use_ivar = True
napoleon_use_rtype = False
strip_signature_backslash = True  # and napoleon keeps the underscore of ``posterior_``

suppress_warnings = ["mystnb.unknown_mime_type", "config.cache"]

html_theme = "pydata_sphinx_theme"
html_title = "pyro_bnn"
html_extra_path = ["_extra"]
html_static_path = ["_static"]
html_css_files = ["narrow.css"]
html_show_sourcelink = False
html_copy_source = False
html_theme_options = {
    "show_prev_next": True,
    "navigation_with_keys": False,
    "navbar_end": ["theme-switcher"],
    "secondary_sidebar_items": ["page-toc"],
    "pygments_light_style": "a11y-high-contrast-light",
    "pygments_dark_style": "a11y-high-contrast-dark",
}
