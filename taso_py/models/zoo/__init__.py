"""The zoo: models with random weights for development, experiments and trying out the optimizer.

Invariant: listing the zoo imports none of the libraries that define its models.
"""

from __future__ import annotations

from difflib import get_close_matches

from taso_py.models.zoo import language, nasrnn, vision
from taso_py.models.zoo.entry import ZooEntry, ZooError

__all__ = ["ZooEntry", "ZooError", "get", "names"]

_ENTRIES = {entry.name: entry for entry in (*nasrnn.ENTRIES, *vision.ENTRIES, *language.ENTRIES)}


def names() -> tuple[str, ...]:
    """Return the names of all models, sorted."""
    return tuple(sorted(_ENTRIES))


def get(name: str) -> ZooEntry:
    """Return the model of a name.

    Raises:
        ZooError: if there is none; the message offers the closest names.
    """
    entry = _ENTRIES.get(name)
    if entry is None:
        close = get_close_matches(name, _ENTRIES, n=3) or names()
        raise ZooError(f"the zoo has no model {name!r}; did you mean {', '.join(close)}?")
    return entry
