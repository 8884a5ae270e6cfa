"""The zoo: models that development, experiments and users try the optimizer on, with random weights.

Invariant: listing the zoo imports none of the libraries that define its models.
"""

from __future__ import annotations

from difflib import get_close_matches

from taso_py.models.zoo import language, nasrnn, vision
from taso_py.models.zoo.entry import ZooEntry, ZooError

__all__ = ["ZooEntry", "ZooError", "get", "names"]

_ENTRIES = {entry.name: entry for entry in (*nasrnn.ENTRIES, *vision.ENTRIES, *language.ENTRIES)}


def names() -> tuple[str, ...]:
    """The names of all models, sorted."""
    return tuple(sorted(_ENTRIES))


def get(name: str) -> ZooEntry:
    """The model of that name.

    Raises:
        ZooError: if there is none; the message offers the closest names.
    """
    entry = _ENTRIES.get(name)
    if entry is None:
        close = get_close_matches(name, _ENTRIES, n=3) or names()
        raise ZooError(f"the zoo has no model {name!r}; did you mean {', '.join(close)}?")
    return entry
