"""The text of a module: a program, and the functions whose derivatives it calls."""

from __future__ import annotations

from collections.abc import Callable


class Module:
    """Functions that a program calls.

    Attributes
    ----------
    parts
        The texts of the functions, and of what makes their derivatives; equal ones are there once.
    """

    def __init__(self) -> None:
        self.parts: list[str] = []
        self._names: dict[tuple[str, ...], str] = {}

    def derivative(self, transform: str, arguments: str, lines: list[str], count: int) -> str:
        """Return the name of a derivative of a function.

        Parameters
        ----------
        transform
            The public name of the transform.
        arguments, lines
            The arguments of the function, and the lines of its body.
        count
            The number of arguments with respect to which it is differentiated, which come first.
        """
        function = self._named("function", lambda name: text_of(name, arguments, lines))
        numbers = "0" if count == 1 else repr(tuple(range(count)))
        return self._named(
            "derivative",
            lambda name: f"{name} = tg.{transform}(compiled({function}), {numbers})\n",
        )

    def _named(self, stem: str, write: Callable[[str], str]) -> str:
        """Return the name of a part; write it if there is none with such a text."""
        key = stem, write("")
        if key not in self._names:
            self._names[key] = f"{stem}{len(self._names) + 1}"
            self.parts.append(write(self._names[key]))
        return self._names[key]

    def source(self, arguments: str, lines: list[str]) -> str:
        """Return the text of the module, with a function of the name ``program``."""
        return "\n\n".join([*self.parts, text_of("program", arguments, lines)])


def text_of(name: str, arguments: str, lines: list[str]) -> str:
    """Return the text of a function."""
    return "\n".join([f"def {name}({arguments}):", *lines]) + "\n"
