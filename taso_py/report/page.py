"""Pages for the browser: one file each, from templates that share a frame and a style.

Invariant: a page is whole by itself. It names no other file and no other place, runs no script, and whatever text comes
from a model is escaped.
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
    """The house's templates; others may extend them."""
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
    """A page.

    Args:
        template: its file among the templates of this package.
        content: what the template names.
    """
    return templates().get_template(template).render(**content)


def milliseconds(time: float) -> str:
    """A time for people, to three significant digits."""
    if not 0 < time < math.inf:
        return f"{time:.2f} ms"
    return f"{time:.{max(0, 2 - math.floor(math.log10(time)))}f} ms"


def _percent(share: float) -> str:
    return f"{share:.1%}" if abs(share) < 0.0995 else share_of_roof(share)


def _breakable(text: str) -> Markup:
    """A name that a narrow column breaks between its parts, not within them."""
    return Markup(re.sub(r"([._+/:,])(?=\w)", r"\1<wbr>", str(escape(text))))
