"""Journal of a generation in a file, so that an interrupted one continues where it stopped.

The journal remembers values of pure functions by name: a caller asks it before computing. A generation is a function of
its configuration, so that a resumed one comes to the same result, sooner.

Invariant: a line that was not written to its end is forgotten; entries belong to one configuration, named in the first
line; one process at a time has the file.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import IO, Any, TypeVar

from taso_py.files import try_file_lock
from taso_py.ir.errors import TasoError

_Item = TypeVar("_Item")


class Journal:
    """Remembers JSON values by name; in memory only, if it is given no file."""

    def __init__(
        self, path: Path | None = None, about: Mapping[str, Any] | None = None, *, resume: bool = False
    ) -> None:
        """Open the journal of a configuration; entries of an earlier run are used if ``resume``, else discarded.

        Raises:
            TasoError: the journal is of another configuration, is another run's, or cannot be written.
        """
        self._known: dict[str, Any] = {}
        self._path, self._file = path, None
        if path is None:
            return
        header = json.dumps(about or {}, sort_keys=True)
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._file = path.open("a+b")
            if not try_file_lock(self._file):
                raise TasoError(f"another run writes {path}; wait for it, or choose another folder")
            self._begin(path, self._file, header, resume=resume)
        except OSError as error:
            self.close()
            raise TasoError(f"cannot write {path}: {error.strerror}; choose another folder") from error
        except TasoError:
            self.close()
            raise

    def _begin(self, path: Path, file: IO[bytes], header: str, *, resume: bool) -> None:
        """Read the known entries and leave them in the file, or empty it and write the header."""
        file.seek(0)
        text = _whole_lines(file.read()) if resume else ""
        first, *lines = text.splitlines() or [header]
        if first != header:
            raise TasoError(f"{path} is of another configuration or version; leave out --resume to start anew")
        try:
            self._known = dict(json.loads(line) for line in lines)
        except (ValueError, TypeError, RecursionError) as error:
            raise TasoError(f"{path} is damaged; leave out --resume to start anew") from error
        file.truncate(len(text.encode()))
        if not text:
            self._write(header)

    def recall(self, name: str, compute: Callable[[], Any]) -> Any:
        """Return the value of this name, computed if it is not known."""
        if name not in self._known:
            self._record(name, compute())
        return self._known[name]

    def recall_all(
        self,
        items: Mapping[str, _Item],
        compute: Callable[[Iterable[_Item]], Iterator[Any]],
        notify: Callable[[int, int], None] = lambda _done, _total: None,
    ) -> list[Any]:
        """Return the values of several names in order; those that are not known are computed together.

        Args:
            items: the item that each value is computed from, by name.
            compute: yields one value per item, in order.
            notify: called with the number done and the total.
        """
        missing = [name for name in items if name not in self._known]
        known = len(items) - len(missing)
        values = compute(items[name] for name in missing)
        for done, (name, value) in enumerate(zip(missing, values, strict=True)):
            notify(known + done, len(items))
            self._record(name, value)
        return [self._known[name] for name in items]

    def _record(self, name: str, value: Any) -> None:
        self._known[name] = value
        self._write(json.dumps([name, value]))

    def _write(self, line: str) -> None:
        if self._file is not None:
            self._file.write(f"{line}\n".encode())
            self._file.flush()

    def remove(self) -> None:
        """Remove the file, which is not needed any more."""
        self.close()
        if self._path is not None:
            self._path.unlink(missing_ok=True)

    def close(self) -> None:
        """End writing; lines that were written stay."""
        if self._file is not None:
            self._file.close()

    def __enter__(self) -> Journal:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _whole_lines(content: bytes) -> str:
    """Return a file's text to the end of its last whole line; none if it is not text."""
    try:
        return content[: content.rfind(b"\n") + 1].decode()
    except UnicodeDecodeError:
        return ""
