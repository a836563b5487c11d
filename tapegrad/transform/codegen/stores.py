"""The reverse of stores, and copies of arrays overwritten before the reverse code reads them."""

from __future__ import annotations

import ast
from types import EllipsisType
from typing import Any

from numba.core import types

from tapegrad.transform.codegen.reverse_state import ReverseState
from tapegrad.transform.codegen.writes import position
from tapegrad.transform.ir import (
    Block,
    Let,
    Statement,
    Store,
    defined,
    name,
    names_in,
    replace_names,
)
from tapegrad.transform.kinds import copy_kind, is_array
from tapegrad.transform.nodes import call_of, copy_of, item, negative
from tapegrad.transform.rules import base as rules
from tapegrad.transform.syntax import leaves, text_of
from tapegrad.transform.tape_memory.elements import is_kept_by_elements


class Copies:
    """Copies of arrays that are overwritten before the reverse code reads them.

    Parameters
    ----------
    state
        The state of reverse mode.
    """

    def __init__(self, state: ReverseState) -> None:
        self.state = state
        self.around: dict[int, tuple[Block, Block]] = {}  # made before and after an operation

    def make(self, statement: Statement, names: list[str]) -> dict[str, str]:
        """Return the names of copies of those arrays that are written later."""
        changing = [
            n
            for n in dict.fromkeys(names)
            if is_array(self.state.types.get(n)) and not self.state.keeps(n, statement)
        ]
        return {n: self._make_one(n, statement) for n in changing}

    def keep(self, statement: Statement, kept: dict[str, str]) -> None:
        """Have the forward code make the copies that the reverse code reads."""
        state = self.state
        made = {
            n: state.scopes.makers[c]
            for n, c in kept.items()
            if c in state.region.needs and c not in state.kept_elements
        }
        results = defined(statement)
        self.around[id(statement)] = (
            [copied for n, copied in made.items() if n not in results],
            [copied for n, copied in made.items() if n in results],
        )

    def _make_one(self, array: str, statement: Statement) -> str:
        """Register a copy of an array and return its name."""
        state = self.state
        number, target = 0, f"{array}_kept"
        while target in state.types:
            number += 1
            target = f"{array}_kept_{number}"
        copied = array_copy(array, state.types[array])
        made = Let(target, copied, statement.line, rules.Passive(False))
        state.types[target] = copy_kind(state.types[array])
        state.region.scope.own.add(target)
        state.scopes.scope_of[target] = state.region.scope
        state.scopes.makers[target] = made
        state.added.add(target)
        state.scopes.roots[id(made)] = state.scopes.roots[id(statement)]
        block = state.region.scope.block
        following = block[position(statement, block) :]
        is_live = state.region.scope.local or not is_kept_by_elements(state.types[array])
        if not is_live and not state.writes.may_change(array, following):
            state.kept_elements[target] = array  # at the end of the block
        return target


def array_copy(array: str, kind: Any) -> ast.Call:
    """Return the expression of a copy of an array, of that type.

    numba's `np.copy` of a name that is in Fortran order first, and in C order in a later iteration,
    is of neither order; the method makes copies in C order.
    """
    return copy_of(name(array)) if kind.layout == "A" else call_of("np.copy", name(array))


class Stores:
    """Writes the reverse of stores.

    Parameters
    ----------
    state
        The state of reverse mode.
    copies
        Copies of arrays.
    """

    def __init__(self, state: ReverseState, copies: Copies) -> None:
        self.state = state
        self.copies = copies

    def reverse(self, store: Store) -> None:
        """Write the reverse of a store."""
        state = self.state
        if not state.is_active(store.array):
            return
        if self._is_fancy(store):
            self._reverse_fancy(store)
            return
        state.read(store.index)
        place = item(state.shadow(store.array), store.index)
        value = store.value
        source = value.id if isinstance(value, ast.Name) else ""
        active = bool(source) and state.is_active(source)
        single = not is_array(state.types.get(source))
        region = self._is_region(store)
        if active and single:
            g = call_of("np.sum", place) if region else place
            factor = ast.Constant(-1.0 if store.op == "-" else 1.0)
            state.add(source, g, factor)
        elif active:
            changes = negative(place) if store.op == "-" else place
            state.add_array(source, changes if store.op else copy_of(place))
        if store.op:
            return
        if active and not single and state.arrays.of(source) == state.arrays.of(store.array):
            # the value comes from the same array: clear first, then add
            state.builder.body.pop()
            held = name(state.derivative("held"))
            state.builder.assign(held, copy_of(place))
            state.builder.assign(place, ast.Constant(0.0))
            state.add_array(source, held)
            return
        state.builder.assign(place, ast.Constant(0.0))

    def _reverse_fancy(self, store: Store) -> None:
        """Write the reverse of a store to elements selected by an index array.

        If a position is selected twice, the last value is stored.
        """
        state = self.state
        kept = self.copies.make(store, names_in(store.index))
        index = replace_names(store.index, kept)
        state.read(index)
        shadow = state.shadow(store.array)
        chosen = item(call_of("arrays.places", shadow), index)
        held = name(state.derivative("held"))
        taken = call_of("arrays.taken", shadow, chosen, ast.Constant(not store.op))
        state.builder.assign(held, taken)
        self.copies.keep(store, kept)
        value = store.value
        if not isinstance(value, ast.Name) or not state.is_active(value.id):
            return
        if is_array(state.types[value.id]):
            state.add_array(value.id, negative(held) if store.op == "-" else held)
        else:
            factor = ast.Constant(-1.0 if store.op == "-" else 1.0)
            state.add(value.id, call_of("np.sum", held), factor)

    def _is_fancy(self, store: Store) -> bool:
        """Whether an index array selects the elements that a store writes."""
        return any(is_array(self.state.types.get(text_of(part))) for part in leaves(store.index))

    def _is_region(self, store: Store) -> bool:
        """Whether a store writes several elements."""
        kind = self.state.types[store.array]
        numbers = 0
        for part in leaves(store.index):
            of = self.state.types.get(text_of(part))
            match part:
                case ast.Slice() | ast.Constant(EllipsisType()):
                    return True
                case ast.Name() if isinstance(of, types.SliceType):
                    return True
                case ast.Constant(None):
                    pass
                case _:
                    numbers += len(of) if isinstance(of, types.BaseTuple) else 1
        return numbers < kind.ndim
