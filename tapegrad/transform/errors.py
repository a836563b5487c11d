"""How the transformation says no: with the user's file, line, the construct and a way out."""

from __future__ import annotations

from typing import Any


class TransformError(TypeError):
    """A function cannot be differentiated as it is written.

    Its text names the file and line, the construct, and what to write instead.
    """

    def __init__(self, message: str, source: Any = None, line: int | None = None) -> None:
        if source is not None and line is not None:
            text = source.text_of(line)
            message = f'{message}\n  File "{source.filename}", line {line}, in {source.name}'
            message += f"\n    {text}" if text else ""
        super().__init__(message)
