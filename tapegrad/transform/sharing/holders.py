"""Which arrays the values of expressions may hold, or share elements with."""

from __future__ import annotations

import ast
from collections.abc import Callable, Collection
from dataclasses import dataclass

from tapegrad.transform.facts import NEW_METHODS, SHAPE_ATTRIBUTES
from tapegrad.transform.generated import Facts
from tapegrad.transform.ir import names_in
from tapegrad.transform.kinds import is_array
from tapegrad.transform.printer import UNDEFINED
from tapegrad.transform.sharing.calls import TAPE, VIEWS, changes_nothing, effect_of
from tapegrad.transform.syntax import PURE, name_of, text_of

_NEW = PURE | {UNDEFINED}
# memory of the tape that no other array of a function has
_PARTS_OF_TAPE = frozenset(["owned_row", "pop_elements", "pop_owned_elements", "row"])
OUTSIDE = "global"  # stands for arrays that were made elsewhere; no name is a keyword


@dataclass(frozen=True)
class Holding:
    """What a function does with arrays that it is given.

    Attributes
    ----------
    kept
        The positions of arguments that something may hold when it returns, besides its results.
    results
        For each part of the result, the positions of arguments that it may share elements with.
    shows_others
        Whether a result may also share elements with arrays that are neither arguments nor new.
    """

    kept: frozenset[int]
    results: tuple[frozenset[int], ...]
    shows_others: bool


HoldingOf = Callable[[str], Holding | None]


class Holders:
    """What the values of expressions of a function may hold.

    Parameters
    ----------
    facts
        What is known of its names.
    holding_of
        Returns what a function that is called does, None for functions of the user.
    """

    def __init__(self, facts: Facts, holding_of: HoldingOf = lambda name: None) -> None:
        self.facts = facts
        self.holding_of = holding_of

    def is_array(self, node: ast.expr) -> bool:
        """Whether an expression is known to be an array of numbers."""
        return self._is_array(name_of(node))

    def _is_array(self, name: str) -> bool:
        return name == "tape" or is_array(self.facts.kind(name))

    def is_part(self, node: ast.expr) -> bool:
        """Whether an expression is known to be an array of numbers, or a part of one."""
        while isinstance(node, (ast.Attribute, ast.Subscript)):
            node = node.value
        return self.is_array(node)

    def _is_number(self, name: str) -> bool:
        return name in TAPE or self.facts.is_number(name)

    def _names(self, node: ast.AST) -> set[str]:
        return set(names_in(node)) - TAPE

    def holders(self, node: ast.expr) -> set[str]:
        """Return the names of arrays that a value may hold or share elements with."""
        match node:
            case ast.Name(id=name):
                return set() if self._is_number(name) else {name}
            case ast.Constant() | ast.Attribute(ast.Name(id="np" | "math")):
                return set()
            case ast.Subscript(whole):
                return self.holders(whole)
            case ast.Attribute(whole, attribute):
                return set() if attribute in SHAPE_ATTRIBUTES else self.holders(whole)
            case ast.BoolOp() | ast.IfExp() | ast.List() | ast.Starred() | ast.Tuple():
                return set().union(*map(self.holders, _parts(node)))
            case ast.BinOp() | ast.UnaryOp() | ast.Compare():
                # of tuples and lists the result holds the parts, of arrays it is a new array
                return set().union(*(self.holders(n) for n in _parts(node) if not self.is_part(n)))
            case ast.Call():
                return self._result(node)
        return self._names(node)

    def known(self, node: ast.Call) -> Holding | None:
        """Return what a function of the module does."""
        return self.holding_of(node.func.id) if isinstance(node.func, ast.Name) else None

    def _result(self, node: ast.Call) -> set[str]:
        """Return the names of arrays that the result of a call may hold or share elements with."""
        arguments = [*node.args, *(keyword.value for keyword in node.keywords)]
        everything: set[str] = set().union(*map(self.holders, arguments))
        module, _, name = text_of(node.func).rpartition(".")
        if module in ("np", "math", "np.linalg"):
            return set() if changes_nothing(node) and name not in VIEWS else everything
        if name in _PARTS_OF_TAPE if module == "runtime" else not module and name in _NEW:
            return set()
        if (found := self.known(node)) is not None:
            held: set[int] = set().union(*found.results)
            return set().union(*map(self.holders, [*taken(node, held), *others_of(found)]))
        match node.func:
            case ast.Attribute(owner) if module not in ("runtime", "arrays", "operator"):
                is_new = name in NEW_METHODS and self.is_part(owner)
                return set() if is_new else everything | self.holders(owner) | {OUTSIDE}
        if module == "arrays":
            effect = effect_of(f"arrays.{name}")
            return everything if effect is None or effect.shows else set()
        return everything if module == "operator" else everything | {OUTSIDE}

    def _is_plain(self, node: ast.expr) -> bool:
        """Whether an argument is known to hold nothing but numbers: a function cannot change it."""
        match node:
            case ast.Tuple(items) | ast.List(items):
                return all(map(self._is_plain, items))
            case ast.Subscript(whole):
                return self._is_plain(whole)
            case ast.Name(id=name):
                return self._is_array(name) or self._is_number(name)
            case ast.Constant():
                return True
        return False


def _parts(node: ast.expr) -> list[ast.expr]:
    """Return the expressions that an expression is made of."""
    return [part for part in ast.iter_child_nodes(node) if isinstance(part, ast.expr)]


def others_of(found: Holding) -> list[ast.expr]:
    """Return what stands for arrays that are neither arguments of a call nor new."""
    return [ast.Name(OUTSIDE, ast.Load())] if found.shows_others else []


def taken(call: ast.Call, positions: Collection[int]) -> list[ast.expr]:
    """Return the arguments at some positions."""
    return [argument for k, argument in enumerate(call.args) if k in positions]
