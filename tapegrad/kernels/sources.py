"""The sources of the package, which code on disk depends on; they may be in a zip file."""

from __future__ import annotations

import pkgutil
from collections.abc import Iterator
from pathlib import Path

_PACKAGE = Path(__file__).parents[1]


def sources(*places: str) -> list[bytes]:
    """Return the contents of files of the package, and of all modules in folders of it.

    Parameters
    ----------
    *places
        Paths from the package, with slashes; those of files end in ``.py``.
    """
    return [
        pkgutil.get_data("tapegrad", file) or b""
        for place in places
        for file in ([place] if place.endswith(".py") else sorted(_modules(place)))
    ]


def _modules(folder: str) -> Iterator[str]:
    yield f"{folder}/__init__.py"
    for _, name, is_package in pkgutil.iter_modules([str(_PACKAGE / folder)]):
        yield from _modules(f"{folder}/{name}") if is_package else [f"{folder}/{name}.py"]
