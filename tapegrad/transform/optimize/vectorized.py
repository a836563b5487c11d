"""Versions of functions of numbers that compilers vectorize where they are called."""

from __future__ import annotations

import ast
from collections.abc import Callable, Mapping
from dataclasses import replace

from numba.core import types

from tapegrad.transform import vector_math
from tapegrad.transform.generated import Generated
from tapegrad.transform.ir import name as as_name
from tapegrad.transform.nodes import attribute
from tapegrad.transform.optimize.iteration import RUNTIME
from tapegrad.transform.syntax import copied, has, leaves, name_of, nodes_in, text_of

_MODULES = ("np", "math", "scalar_ops")


class VectorizedHelpers:
    """The versions of one module.

    Parameters
    ----------
    functions
        The functions of the module.
    helpers
        Returns other functions that are called, by their names, if they are functions of numbers.
    fresh
        Returns a name that the module does not use.

    Attributes
    ----------
    functions
        What was made.
    """

    def __init__(
        self,
        functions: Mapping[str, Generated],
        helpers: Callable[[str], Generated | None],
        fresh: Callable[[str], str],
    ) -> None:
        self._given, self._helpers, self._fresh = functions, helpers, fresh
        self._names: dict[str, str] = {}  # of versions, by the functions; "" for none
        self.functions: list[Generated] = []

    def name_of(self, name: str) -> str:
        """Return the version of a function of numbers that vectorizes, "" if there is none."""
        if name not in self._names:
            self._names[name] = ""  # while it is being looked at
            function = self._given.get(name) or self._helpers(name)
            if function is not None:
                self._names[name] = self._version(function)
        return self._names[name]

    def _version(self, function: Generated) -> str:
        tree = copied(function.tree)
        if not _computes_numbers(function):
            return ""
        for node in nodes_in(tree, ast.Call):
            found = self._callee(node)
            if found is None:
                return ""
            node.func = found
        tree.name = self._fresh(f"{function.name}_vectorized")
        self.functions.append(replace(function, tree=tree, options={"forceinline": True}))
        return tree.name

    def _callee(self, node: ast.Call) -> ast.expr | None:
        """Return what is called in place of a function of numbers, None if there is nothing."""
        text = text_of(node.func)
        module, _, name = text.rpartition(".")
        if text in RUNTIME or text in ("abs", "min", "max"):
            return node.func
        if module in _MODULES:
            count = vector_math.ARGUMENTS.get(name)
            is_known = count == len(node.args) and name not in ("pow", *vector_math.SINES)
            return attribute(as_name("vector_math"), name) if is_known else None
        found = "" if module else self.name_of(name)
        return as_name(found) if found else None


def _computes_numbers(function: Generated) -> bool:
    """Whether a function of floats computes floats, with neither loops nor errors."""
    tree, options = function.tree, function.made_from.targetoptions
    if function.made_from.py_func.__defaults__:  # calls may have fewer arguments
        return False
    refused: tuple[type[ast.AST], ...] = (ast.For, ast.While, ast.Raise, ast.Subscript)
    if options.get("error_model") != "numpy":
        refused += (ast.Div, ast.FloorDiv, ast.Mod)
    if has(tree, *refused):
        return False
    match tree.body[-1]:
        case ast.Return(ast.expr() as value):
            results = map(name_of, leaves(value))
        case _:
            return False
    kinds = map(function.facts.kind, [*(parameter.arg for parameter in tree.args.args), *results])
    return all(kind is not None and types.unliteral(kind) == types.float64 for kind in kinds)
