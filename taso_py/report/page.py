"""HTML pages, one self-contained file each, from templates with a common frame and style.

Invariant: a page refers to no other file or address, runs no script, and all text from a model is escaped.
"""

from __future__ import annotations

import math
import re
from functools import cache
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup, escape

from taso_py.report.chart import short
from taso_py.report.profile import mebibytes, share_of_roof


@cache
def templates() -> Environment:
    """Return the environment of this package's templates, which others may extend."""
    found = Environment(
        loader=PackageLoader("taso_py.report"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    found.filters.update(percent=_percent, ms=milliseconds, mebibytes=mebibytes, short=short, breakable=_breakable)
    return found


def render(template: str, **content: Any) -> str:
    """Return a page.

    Args:
        template: file name of the template.
        content: variables of the template.
    """
    return templates().get_template(template).render(**content)


def milliseconds(time: float) -> str:
    """Return a time as text with three significant digits."""
    if not 0 < time < math.inf:
        return f"{time:.2f} ms"
    return f"{time:.{max(0, 2 - math.floor(math.log10(time)))}f} ms"


def _percent(share: float) -> str:
    return f"{share:.1%}" if abs(share) < 0.0995 else share_of_roof(share)


def _breakable(text: str) -> Markup:
    """Return a name with line breaks allowed between its parts."""
    return Markup(re.sub(r"([._+/:,])(?=\w)", r"\1<wbr>", str(escape(text))))
