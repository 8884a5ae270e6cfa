"""The style of the pages: every colour has a name with a value for light and one for dark, and can be read on both."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

import pytest

import taso_py.report
from taso_py.report.optimization_page import optimization_page
from taso_py.report.profile_page import profile_page
from tests.report.test_optimization_page import EVIDENCE, REPORT
from tests.report.test_profile_page import PROFILE

HOUSE = Path(taso_py.report.__file__).parent
STYLE = (HOUSE / "templates" / "style.css").read_text(encoding="utf-8")
LITERAL = re.compile(r"#[0-9a-fA-F]{3,8}\b|\b(?:rgba?|hsla?)\(")
TEXT = ("ink", "dim", "accent", "good", "bad")


def schemes(style: str) -> dict[str, dict[str, str]]:
    """The colours by name, for light and for dark."""
    blocks = re.findall(r":root \{(.*?)\}", style, re.DOTALL)
    light, dark = (re.findall(r"--([\w-]+): (#\w+);", block) for block in blocks)
    return {"light": dict(light), "dark": dict(dark)}


def literals(text: str) -> list[str]:
    """Colours that are written out where a name should stand; white behind a picture is for both."""
    return LITERAL.findall(re.sub(r":root \{.*?\}|&#\d+;|img \{.*?\}", "", text, flags=re.DOTALL))


def undefined(text: str, colours: Mapping[str, str]) -> set[str]:
    """Names of colours that are used and not given."""
    return set(re.findall(r"var\(--([\w-]+)\)", text)) - set(colours)


def contrast(one: str, other: str) -> float:
    """The ratio of luminances that WCAG 2 defines."""
    brighter, darker = sorted((_luminance(one), _luminance(other)), reverse=True)
    return (brighter + 0.05) / (darker + 0.05)


def _luminance(colour: str) -> float:
    channels = [int(colour[place : place + 2], 16) / 255 for place in (1, 3, 5)]
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels]
    return sum(weight * c for weight, c in zip((0.2126, 0.7152, 0.0722), linear, strict=True))


def test_light_and_dark_name_the_same_colours() -> None:
    both = schemes(STYLE)
    assert both["light"].keys() == both["dark"].keys()
    assert len(both["light"]) > 20


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_every_colour_of_a_page_is_given(scheme: str) -> None:
    colours = schemes(STYLE)[scheme]
    for page in (optimization_page(REPORT, EVIDENCE), profile_page(PROFILE)):
        assert undefined(page, colours) == set()
    assert undefined("fill:var(--nobody)", colours) == {"nobody"}


def test_no_colour_is_written_out() -> None:
    for path in (*HOUSE.glob("*.py"), *HOUSE.glob("templates/*")):
        assert literals(path.read_text(encoding="utf-8")) == [], path.name
    assert literals('<rect fill="#fff"/><b style="color:rgb(1,2,3)">') == ["#fff", "rgb("]


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_text_and_lines_stand_out(scheme: str) -> None:
    colours = schemes(STYLE)[scheme]
    grounds = ("page", "soft", "box", "removed-box", "added-box")
    for text, ground in [
        *((text, ground) for text in TEXT for ground in grounds[:2]),
        *((text, ground) for text in ("ink", "dim") for ground in grounds[2:]),
        *((f"on-{bound}", bound) for bound in ("compute", "memory", "overhead")),
        ("ink", "area"),
    ]:
        assert contrast(colours[text], colours[ground]) >= 4.5, (text, ground)
    for line in ("removed", "added", "area-line", *(f"hue-{place}" for place in range(9))):
        assert contrast(colours[line], colours["page"]) >= 2.5, line


def test_contrast_is_that_of_the_standard() -> None:
    assert contrast("#000000", "#ffffff") == pytest.approx(21)
    assert contrast("#777777", "#888888") < 1.5
