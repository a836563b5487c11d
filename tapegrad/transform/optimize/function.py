"""A function while passes change it, and what is found out about it on demand."""

from __future__ import annotations

import ast
import functools
from collections.abc import Callable
from dataclasses import dataclass

from tapegrad.transform.frontend.liveness import live_after
from tapegrad.transform.generated import Facts, Generated
from tapegrad.transform.ir import names_in, take
from tapegrad.transform.optimize.module import Module
from tapegrad.transform.sharing.flow import Flow
from tapegrad.transform.sharing.holders import Holding
from tapegrad.transform.syntax import copied


class Analyses:
    """What is found out about a function when a pass first asks for it.

    Parameters
    ----------
    tree
        The function. When it changes, this is dropped.
    facts
        What is known of its names.
    holding_of
        Returns what a function that is called does with its arguments.
    """

    def __init__(
        self, tree: ast.FunctionDef, facts: Facts, holding_of: Callable[[str], Holding | None]
    ) -> None:
        self._tree, self._facts, self._holding_of = tree, facts, holding_of

    @functools.cached_property
    def flow(self) -> Flow:
        """Where its arrays may go."""
        return Flow(self._tree, self._facts, self._holding_of)

    @functools.cached_property
    def live_after(self) -> dict[int, set[str]]:
        """The names that are read after each statement, by its id."""
        return live_after(self._tree.body)


@dataclass
class BlockedLoop:
    """A loop with the code that takes its place, which runs in blocks."""

    loop: ast.For
    statements: list[ast.stmt]


class Function:
    """A function of a module that passes change.

    Parameters
    ----------
    generated
        The function as it was verified, which stays as it is.
    module
        Its module.

    Attributes
    ----------
    tree
        The function, which passes change.
    facts
        What is known of its names.
    analyses
        What is found out about it on demand.
    fresh
        Returns a name that it does not use.
    peers
        The functions of the module that passes change, itself among them.
    is_faster
        Whether a pass has made it faster.
    blocked
        The loops that later run in blocks, by their ids: other passes leave them as they are.
    before
        What is to be found out before a statement, by the id of the statement.
    block, rows
        The array that blocks are in, and how many rows it has.
    is_split
        Whether every value has a name of its own.
    """

    def __init__(self, generated: Generated, module: Module) -> None:
        self.generated = generated
        self.module = module
        self.tree = copied(generated.tree)
        self.facts = generated.facts
        self.fresh = unused_in(self.tree)
        self.peers = [self]
        self.is_faster = False
        self.blocked: dict[int, BlockedLoop] = {}
        self.before: dict[int, list[ast.stmt]] = {}
        self.block, self.rows = "", 0
        self.is_split = False
        self.drop_analyses()

    @property
    def name(self) -> str:
        """Its name."""
        return self.generated.name

    def drop_analyses(self) -> None:
        """Forget what was found out, since the function has changed."""
        self.analyses = Analyses(self.tree, self.facts, self.module.holding)


def unused_in(tree: ast.FunctionDef) -> Callable[[str], str]:
    """Return a function that returns names which a function does not use."""
    taken = {*names_in(tree), *(parameter.arg for parameter in tree.args.args)}
    return functools.partial(take, taken=taken)
