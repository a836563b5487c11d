"""What a loop of generated code does with arrays.

An array is a name from outside the loop; views of it that the loop makes count as the array. Two
arrays may share elements: parallel code tests that before it runs.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

from tapegrad.transform.facts import NEW_METHODS, SHAPE_ATTRIBUTES
from tapegrad.transform.generated import Facts
from tapegrad.transform.independence.sums import pairs
from tapegrad.transform.ir import names_in
from tapegrad.transform.kinds import is_array
from tapegrad.transform.printer import PARALLEL
from tapegrad.transform.sharing.calls import TAPE, VIEWS, changes_nothing, effect_of
from tapegrad.transform.sharing.holders import OUTSIDE, Holders, Holding
from tapegrad.transform.syntax import PURE, array_of, leaves, name_of, text_of

READ, ADD, STORE = "read", "add", "store"


@dataclass(frozen=True)
class Access:
    """A use of elements of an array: those at an index, or some of them if it has slices."""

    array: str
    kind: str
    index: tuple[ast.expr, ...] = ()


class UnprovedError(Exception):
    """Why a loop is not proved to have independent iterations."""


@dataclass(frozen=True)
class Effects:
    """What a function does: with each argument, and whether its results may be views of them."""

    on_arguments: list[str]
    returns_views: bool = False


class Uses(Holders):
    """Collects what statements do with arrays from outside.

    Parameters
    ----------
    facts
        What is known of the function.
    effects_of
        Returns what a function that is called does, None if that is unknown.

    Attributes
    ----------
    accesses
        What they do.
    uses_tape
        Whether they use the tape.
    """

    def __init__(self, facts: Facts, effects_of: Callable[[str], Effects | None]) -> None:
        super().__init__(facts, self._holding_of)
        self.effects_of = effects_of
        self.accesses: list[Access] = []
        self.uses_tape = False
        self._views: dict[str, Access] = {}  # of local names
        self._fresh: set[str] = set()  # local arrays

    def _holding_of(self, name: str) -> Holding | None:
        """Return what the result of a function may be a view of."""
        if (found := self.effects_of(name)) is None:
            return None
        shown = frozenset(range(len(found.on_arguments)) if found.returns_views else ())
        return Holding(frozenset(), (shown,), shows_others=False)

    def block(self, body: list[ast.stmt]) -> None:
        """Collect the uses of statements."""
        for node in body:
            self.statement(node)

    def statement(self, node: ast.stmt) -> None:
        match node:
            case ast.Assign():
                self._assign(node)
            case ast.AugAssign():
                self._add(node)
            case ast.Expr(value):
                self.expression(value)
            case ast.If(test, body, orelse) | ast.While(test, body, orelse):
                self.expression(test)
                self.block(body)
                self.block(orelse)
            case ast.For(_, over, body):
                self.expression(over)
                self.block(body)
            case ast.Return():
                raise UnprovedError("it is left by a return")
            case ast.Pass() | ast.Break() | ast.Continue() | ast.Raise():
                pass
            case _:
                raise UnprovedError(f"of `{text_of(node)}`")

    # -- assignments --------------------------------------------------------------------------

    def _assign(self, node: ast.Assign) -> None:
        self.expression(node.value)
        target = node.targets[0]
        made = dict(pairs(node))
        for part in leaves(target):
            match part:
                case ast.Subscript():
                    self._store(part, STORE)
                case ast.Name(id=name):
                    self._bind(name, made.get(name, node.value))
                case _:
                    raise UnprovedError(f"of `{text_of(node)}`")

    def _bind(self, name: str, value: ast.expr) -> None:
        """Note what array a local name is a view of."""
        if self._is_number(name):
            return
        view = self._view(value)
        before = self._views.get(name)
        if name in self._fresh if view is not None else before is not None:
            raise UnprovedError(f"`{name}` is one of several arrays")
        if view is None:
            self._fresh.add(name)
        elif before is None:
            self._views[name] = view
        elif before.array != view.array:
            raise UnprovedError(f"`{name}` is one of several arrays")
        elif before != view:
            self._views[name] = Access(view.array, READ, (ast.Slice(),))

    def _add(self, node: ast.AugAssign) -> None:
        self.expression(node.value)
        kind = ADD if isinstance(node.op, (ast.Add, ast.Sub)) else STORE
        match node.target:
            case ast.Subscript() as target:
                self._store(target, kind)
            case ast.Name(id=name) if not self.facts.is_number(name):
                if name in TAPE:
                    self.uses_tape = True
                elif is_array(self.facts.kind(name)):
                    self._note(self._of(name), kind)
                elif name not in self._fresh:
                    raise UnprovedError(f"of `{text_of(node)}`")

    def _store(self, target: ast.Subscript, kind: str) -> None:
        self.expression(target.slice)
        array = array_of(target)
        if not array:
            raise UnprovedError(f"of `{text_of(target)}`")
        if array == "tape":
            self.uses_tape = True
            return
        self._note(_within(self._of(array), target.slice), kind)

    def _of(self, name: str) -> Access | None:
        """Return the array that a name is a view of, None for a local array."""
        if name in self._fresh:
            return None
        return self._views.get(name, Access(name, READ))

    def may_be_view(self, name: str) -> bool:
        """Whether a name may be a view of an array from outside."""
        return not self._is_number(name) and name not in self._fresh

    def _note(self, access: Access | None, kind: str) -> None:
        if access is not None:
            self.accesses.append(Access(access.array, kind, access.index))

    # -- expressions --------------------------------------------------------------------------

    def expression(self, node: ast.AST) -> None:
        """Collect what an expression reads, and what its calls do."""
        match node:
            case ast.Name(id=name) if name in TAPE:
                self.uses_tape = True
            case ast.Name(id=name):
                if not self.facts.is_number(name) and name not in self._fresh:
                    self._note(self._of(name), READ)
            case ast.Subscript(ast.Name(id=array), index) if array != "tape":
                self.expression(index)
                self._note(_within(self._of(array), index), READ)
            case ast.Subscript(whole, index):
                self.expression(index)
                self.expression(whole)
            case ast.Attribute(whole, attribute):
                if attribute not in SHAPE_ATTRIBUTES:
                    self.expression(whole)
            case ast.Call():
                self._call(node)
            case _:
                for part in ast.iter_child_nodes(node):
                    self.expression(part)

    def _call(self, node: ast.Call) -> None:
        arguments = [*node.args, *(keyword.value for keyword in node.keywords)]
        text = text_of(node.func)
        module, _, name = text.rpartition(".")
        effects: list[str] | None = None
        if module in ("np", "math", "cmath", "operator", "np.linalg"):
            if any(k.arg == "out" for k in node.keywords):
                raise UnprovedError(f"of `{text_of(node)}`")
            if changes_nothing(node) or all(map(self._is_of_numbers, arguments)):
                effects = [READ] * len(arguments)
        elif (declared := effect_of(text)) is not None:
            kinds = {declared.adds_to: ADD, declared.assigns: STORE}
            effects = [kinds.get(k, READ) for k in range(len(arguments))]
        elif text == PARALLEL:
            effects = [READ] * len(arguments)
        elif text == "runtime.push_array":
            # what a worker is given has no owner: a reference to it would not keep it
            if self.may_be_view(text_of(node.args[2])):
                raise UnprovedError("the reverse pass needs a view of an array")
            effects = [READ] * len(arguments)
        elif module == "runtime" or (not module and name in PURE):
            effects = [READ] * len(arguments)
        elif not module:
            found = self.effects_of(name)
            effects = None if found is None else found.on_arguments
        elif isinstance(node.func, ast.Attribute) and (
            name in NEW_METHODS or name in VIEWS or name in ("real", "imag", "type")
        ):
            self.expression(node.func.value)
            effects = [READ] * len(arguments)
        elif all(map(self._is_of_numbers, arguments)) and module in ("ops", "scalar_ops"):
            effects = [READ] * len(arguments)
        if effects is None:
            raise UnprovedError(f"of the call of `{text}`, whose effects are unknown")
        if node.keywords and any(effect != READ for effect in effects):
            raise UnprovedError(f"of the call of `{text}`, which writes to an argument")
        for argument, effect in zip(arguments, effects, strict=False):
            if effect == READ:
                self.expression(argument)
                continue
            view = self._view(argument)
            if view is not None:
                self._note(view, effect)
            elif name_of(argument) not in self._fresh:
                raise UnprovedError(f"of the call of `{text}`, which writes to an argument")

    def _is_of_numbers(self, node: ast.expr) -> bool:
        names = set(names_in(node))
        return all(map(self.facts.is_number, names - {"np", "math"} - PURE))

    def _view(self, node: ast.expr) -> Access | None:
        """Return the elements of an array from outside that an expression may be a view of."""
        match node:
            case ast.Name(id=name):
                return None if self._is_number(name) else self._of(name)
            case ast.Subscript(whole, index):
                return _within(self._view(whole), index)
        views = filter(None, map(self._of, self.holders(node) - {OUTSIDE}))
        match list({view.array: view for view in views}.values()):
            case []:
                return None
            case [view]:
                return _some(view)
        raise UnprovedError(f"of `{text_of(node)}`, which may be one of several arrays")


def _within(access: Access | None, index: ast.expr) -> Access | None:
    """Return the elements that an index selects of those of an access."""
    if access is None or any(isinstance(part, ast.Slice) for part in access.index):
        return access  # these are some of them
    parts = leaves(index)
    for place, part in enumerate(parts):
        if isinstance(part, ast.Constant) and part.value in (None, ...):
            parts[place:] = [ast.Slice()]
            break
    return Access(access.array, access.kind, (*access.index, *parts))


def _some(access: Access) -> Access:
    """Return elements of an access whose indices are not known."""
    return replace(access, index=(*access.index, ast.Slice()))


def effects_of_function(
    function: ast.FunctionDef, facts: Facts, effects_of: Callable[[str], Effects | None]
) -> Effects:
    """Return what a function does at most."""
    uses = Uses(facts, effects_of)
    uses.block([node for node in function.body if not isinstance(node, ast.Return)])
    found = {name: {a.kind for a in uses.accesses if a.array == name} for name in _names(function)}
    order = [READ, ADD, STORE]
    on_arguments = [
        # what is both read and added to cannot be made private
        STORE if found[name] == {READ, ADD} else max(found[name] or {READ}, key=order.index)
        for name in _names(function)
    ]
    last = function.body[-1]
    returned = names_in(last)
    return Effects(on_arguments, any(map(uses.may_be_view, returned)))


def _names(function: ast.FunctionDef) -> Iterator[str]:
    return (parameter.arg for parameter in function.args.args)
