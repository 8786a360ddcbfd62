"""Mathematics of the site as MathML, which browsers draw without a script and without a network.

A formula that cannot be converted is a warning, so an error of the build. The font, STIX Two Math,
is that of the package ziamath: without one that knows mathematics brackets and roots do not grow.
"""

from __future__ import annotations

import shutil
from importlib import resources
from pathlib import Path
from typing import Any

from docutils import nodes
from math_core import LatexError, LatexToMathML
from sphinx.application import Sphinx
from sphinx.util import logging

LOGGER = logging.getLogger(__name__)
FONT = "STIXTwoMath-Regular.ttf"
CONVERTER = LatexToMathML(fancy_error=False)


def mathml(node: nodes.Element, *, display: bool) -> str:
    """One formula; rows of a display that name no environment are aligned at their ``&``."""
    latex = node.astext().strip()
    if display and r"\\" in latex and r"\begin" not in latex:
        latex = rf"\begin{{aligned}}{latex}\end{{aligned}}"
    try:
        return CONVERTER.convert_with_local_state(latex, displaystyle=display)
    except LatexError as error:
        LOGGER.warning("formula %r: %s", latex, error, location=node)
        return ""


def visit_math(writer: Any, node: nodes.Element) -> None:
    """A formula in a line of text."""
    writer.body.append(mathml(node, display=False))
    raise nodes.SkipNode


def visit_displaymath(writer: Any, node: nodes.Element) -> None:
    """A formula by itself; wide ones scroll in their box."""
    writer.body.append(writer.starttag(node, "div", CLASS="math"))
    writer.body.append(f"{mathml(node, display=True)}</div>")
    raise nodes.SkipNode


def copy_font(app: Sphinx, error: Exception | None) -> None:
    """Put the font beside the style sheet that names it."""
    if error is None:
        font = resources.files("ziamath") / "fonts" / FONT
        with resources.as_file(font) as path:
            shutil.copy(path, Path(app.outdir) / "_static" / FONT)


def setup(app: Sphinx) -> dict[str, bool]:
    """Register the renderer."""
    app.add_css_file("math.css")
    app.connect("build-finished", copy_font)
    app.add_html_math_renderer("mathml", (visit_math, None), (visit_displaymath, None))
    return {"parallel_read_safe": True, "parallel_write_safe": True}
