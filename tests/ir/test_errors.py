"""What is repeated of other libraries' messages."""

import pytest

from taso_py.ir.errors import first_line


@pytest.mark.parametrize(
    ("said", "repeated"),
    [
        ("too large\n  at line 3\n", "too large"),
        ("", "ValueError('')"),
        ("the backend raised:\nAssertionError: no packing\nmore", "the backend raised: AssertionError: no packing"),
        ("it ends:", "it ends:"),
        ("It is broken. " + "Ask someone. " * 30, "It is broken." + " Ask someone." * 13 + " Ask someone"),
        ("word " * 100, "word " * 40 + "..."),
    ],
)
def test_one_line_of_bounded_length_is_repeated(said: str, repeated: str) -> None:
    assert first_line(ValueError(said)) == repeated
