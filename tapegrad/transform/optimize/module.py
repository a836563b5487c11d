"""The functions of a generated module, as the passes over one of them see the others."""

from __future__ import annotations

from collections.abc import Callable, Collection

from tapegrad.transform.frontend.liveness import used
from tapegrad.transform.generated import Generated
from tapegrad.transform.optimize.vectorized import VectorizedHelpers
from tapegrad.transform.sharing.flow import Flow
from tapegrad.transform.sharing.holders import Holding


class Module:
    """The functions of a module, as they were verified.

    Parameters
    ----------
    functions
        The functions.
    helpers
        Functions of numbers that are called and not among them, by their names.
    fresh
        Returns a name that the module does not use.
    """

    def __init__(
        self,
        functions: list[Generated],
        helpers: Callable[[str], Generated | None],
        fresh: Callable[[str], str],
    ) -> None:
        self.functions = {function.name: function for function in functions}
        self.fresh = fresh
        self.vectorized = VectorizedHelpers(self.functions, helpers, fresh)
        self._holdings: dict[str, Holding] = {}  # what functions do with their arguments

    def callees(self, name: str) -> set[str]:
        """Return the functions of the module that one calls."""
        return used(self.functions[name].tree) & self.functions.keys()

    def reached(self, entries: Collection[str]) -> list[str]:
        """Return the functions that some need, callees first."""
        found: dict[str, None] = {}
        open_: set[str] = set()

        def visit(name: str) -> None:
            if name in open_:
                return
            open_.add(name)
            for callee in sorted(self.callees(name)):
                visit(callee)
            found[name] = None

        for entry in entries:
            visit(entry)
        return list(found)

    def with_callers(self, names: set[str]) -> set[str]:
        """Return some functions and all those that need them."""
        found = set(names)
        while more := {n for n in self.functions if self.callees(n) & found} - found:
            found |= more
        return found

    def is_recursive(self, name: str) -> bool:
        """Whether a function may call itself."""
        return name in self.reached(self.callees(name))

    def holding(self, name: str) -> Holding | None:
        """Return what a function does with its arguments, None if it is not of the module."""
        if name not in self.functions:
            return None
        if name not in self._holdings:
            function = self.functions[name]
            # while it is being looked at, if it calls itself
            everything = frozenset(range(len(function.tree.args.args)))
            self._holdings[name] = Holding(everything, (), shows_others=True)
            self._holdings[name] = Flow(function.tree, function.facts, self.holding).holding()
        return self._holdings[name]
