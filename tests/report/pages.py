"""What every page must be: well-formed, and whole by itself."""

from __future__ import annotations

import re
from html.parser import HTMLParser

VOID = {"meta", "br", "hr", "img", "link", "input", "wbr"}
WITHIN = ("#", "data:image/png;base64,")
"""How addresses begin that do not lead out of a page."""


class _Reader(HTMLParser):
    """Collects text and attributes; notes tags that are closed in the wrong order."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.problems: list[str] = []
        self.text: list[str] = []
        self.tags: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        if tag not in VOID:
            self.open.append(tag)
        for name, value in attrs:
            self._check(tag, name, value or "")

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        for name, value in attrs:
            self._check(tag, name, value or "")

    def handle_endtag(self, tag: str) -> None:
        if not self.open or self.open.pop() != tag:
            self.problems.append(f"</{tag}> closes something else")

    def handle_data(self, data: str) -> None:
        self.text.append(data)

    def _check(self, tag: str, name: str, value: str) -> None:
        outward = name in ("src", "href", "xlink:href", "data", "action") and not value.startswith(WITHIN)
        if outward or name.startswith("on") or "url(" in value:
            self.problems.append(f"<{tag} {name}={value!r}> reaches outside of the page")


def problems(page: str) -> list[str]:
    """What is wrong with a page: nothing if it is well-formed, runs nothing and names no other place."""
    reader = _Reader()
    reader.feed(page)
    reader.close()
    found = reader.problems + [f"<{tag}> is never closed" for tag in reader.open]
    found += [f"<{tag}> is not allowed" for tag in reader.tags if tag in ("script", "link", "iframe", "object")]
    style = " ".join(re.findall(r"<style>(.*?)</style>", page, re.DOTALL))
    found += [f"the style has {word}" for word in ("@import", "url(") if word in style]
    return found


def text_of(page: str) -> str:
    """The text that a reader sees, and tooltips."""
    reader = _Reader()
    reader.feed(page.replace("<wbr>", ""))  # where a word may be broken, it is still one
    return " ".join(" ".join(reader.text).split())
