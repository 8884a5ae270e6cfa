"""The one base of the errors that this project raises on purpose.

Invariant: the text of a ``TasoError`` is a single line that says what is wrong and what to do about it.
"""


class TasoError(Exception):
    """Base of every error that this project raises for a user; its text is one line that says what to do."""


class ShapeError(TasoError):
    """Operand types that an operator does not accept; during matching and enumeration it means "no match"."""


class GraphTextError(TasoError):
    """Text that does not follow the graph or rule grammar; the message names line and column."""


class InvariantError(TasoError):
    """A graph that breaks an invariant of the intermediate representation; the message names the node."""


MOST_CHARACTERS = 200
"""The most characters of another library's message that are repeated."""


def in_a_line(value: object) -> str:
    """Return a value as a message repeats it: the first line of its representation, shortened if it is long."""
    line = next(iter(repr(value).splitlines()), type(value).__name__)
    return line if len(line) <= MOST_CHARACTERS else f"{line[:MOST_CHARACTERS]} ..."


def first_line(error: BaseException) -> str:
    """Return the first line of another library's error message, shortened if it is long.

    A line that ends with a colon only announces the next.
    """
    lines = iter(str(error).strip().splitlines())
    line = next(lines, repr(error))
    if line.endswith(":"):
        line = f"{line} {next(lines, '')}".rstrip()
    if len(line) <= MOST_CHARACTERS:
        return line
    start = line[:MOST_CHARACTERS]
    sentences = start.rpartition(". ")[0]
    return sentences or f"{start.rpartition(' ')[0]} ..."
