"""The interfaces of a module that is generated, for derivatives and rules.

They are importable without what implements them (`tapegrad.transform.codegen`).
"""

from __future__ import annotations

import ast
import enum
from typing import Any, NamedTuple, Protocol


class Returns(enum.Flag):
    """What a gradient returns: the gradient of the only argument or a tuple of them, the value."""

    VALUE = enum.auto()
    GRADIENT = enum.auto()
    GRADIENTS = enum.auto()


class Instance(Protocol):
    """A function with the types of its arguments, ready to be differentiated."""

    function: Any  # its normal form
    kinds: tuple[Any, ...]
    params: list[Any]  # atom or structure of every argument
    writes: set[int]  # positions of leaves of the arguments

    def leaves(self) -> list[str]:
        """Return the names of all parts of the arguments."""

    def results(self) -> list[str]:
        """Return the names of all parts of the result that carry derivatives."""


class Program(Protocol):
    """The module that is generated: its functions and the objects that they name."""

    statics: dict[str, Any]
    origins: dict[str, Any]  # how to find each of them in another process
    rounded: list[str]  # what is to be said of values that are rounded

    def fresh(self, stem: str) -> str:
        """Return an unused name of the module."""

    def add(self, function: ast.FunctionDef, dispatcher: Any) -> None:
        """Add a function that was made from a compiled one and inherits its options."""

    def instance(self, dispatcher: Any, kinds: tuple[Any, ...]) -> Any:
        """Return a function for argument types; it is lowered later."""

    def analyse(self, *, is_reverse: bool = False) -> None:
        """Lower all instances and find their effects."""

    def variant(
        self, instance: Any, active: tuple[bool, ...], same: bool, kept: tuple[bool, ...]
    ) -> Any:
        """Return the forward and reverse functions of an instance for what is active."""

    def tangent(self, instance: Any, active: tuple[bool, ...]) -> str:
        """Return the name of the function that computes the tangents of an instance."""

    def pullback(
        self, instance: Any, numbers: tuple[int, ...], seeds: int, returns: Returns, out: str = ""
    ) -> str:
        """Write the function that computes the gradient; return its name."""

    def pushforward(self, instance: Any, numbers: tuple[int, ...]) -> str:
        """Write the function that computes value and tangent; return its name."""

    def drop_values(self) -> None:
        """Let functions compute no arrays that are only part of the value."""

    def take_directions(self, entry: str, given: int, count: int) -> None:
        """Let functions take several tangents."""

    def static(self, text: str, value: Any, origin: Any) -> str:
        """Return the name of an object that generated code uses."""

    def derived(self, base: Any, kind: str, positions: tuple[int, ...]) -> str:
        """Return the name of a derivative of a derivative."""

    def origin_of(self, value: Any) -> Any:
        """Return how an object is found in another process, None if it is not."""


class Bound(NamedTuple):
    """A complete call."""

    kinds: tuple[Any, ...]  # of all arguments
    texts: list[str]  # the expression passed for each, in terms of the given arguments
    # the parameters that are omitted and their values, by their names in these expressions
    defaults: dict[str, tuple[str, Any]]


class Claim(NamedTuple):
    """What a derivative returns.

    Attributes
    ----------
    function
        The function that it is a derivative of.
    numbers
        The arguments with respect to which it is differentiated.
    is_reverse
        Whether it returns cotangents of them; otherwise, the tangent of the result.
    has_value
        Whether it returns the result of the function before that.
    added
        How many arguments it has besides those of the function: cotangents of the result, or
        tangents of these arguments.
    """

    function: Any
    numbers: tuple[int, ...]
    is_reverse: bool
    has_value: bool
    added: int


class Derivative(Protocol):
    """A derivative of a compiled function, as far as its module depends on it."""

    base: Any
    root: Any  # the function of the user
    py_func: Any
    assumes: bool

    def claim(self, kinds: tuple[Any, ...]) -> Claim | None:
        """Return what it returns for types of arguments, None if that is not compared."""

    def generate(self, program: Any, kinds: tuple[Any, ...]) -> str:
        """Write its functions to a module; return the name of the entry."""

    def finish(self, program: Any, entry: str) -> None:
        """Change the functions after they were verified."""
