"""Which values the forward pass keeps on the tape, and the code that pushes and pops them."""

from __future__ import annotations

import ast
from collections.abc import Collection
from typing import Any

from numba.core import types

from tapegrad.transform import runtime
from tapegrad.transform.builder import Builder, add_block
from tapegrad.transform.codegen.analysis import Scope
from tapegrad.transform.codegen.cuts import Needs, kept_instead
from tapegrad.transform.codegen.read_often import ReadOften
from tapegrad.transform.codegen.reverse_state import ReverseState
from tapegrad.transform.codegen.shadows import Shadows
from tapegrad.transform.codegen.tape_code import (
    add_growth,
    add_pop,
    add_push,
    after_top,
    times,
    trips_of,
)
from tapegrad.transform.facts import SHAPE_ATTRIBUTES
from tapegrad.transform.frontend.constants import member_like
from tapegrad.transform.ir import (
    Block,
    FunctionIR,
    If,
    Let,
    Loop,
    Role,
    Statement,
    defined,
    name,
    names_in,
    reads,
    replace_names,
    unused,
    walk,
)
from tapegrad.transform.kinds import is_array, may_share
from tapegrad.transform.nodes import (
    attribute,
    binary,
    call_of,
    compare,
    is_number,
    item,
    names,
    tuple_of,
)
from tapegrad.transform.rules import base as rules
from tapegrad.transform.tape_memory.elements import is_kept_by_elements


class Keeping:
    """Decides between keeping values and recomputing them.

    Parameters
    ----------
    state
        The state of reverse mode.
    shadows
        The arrays of cotangents.
    """

    def __init__(self, state: ReverseState, shadows: Shadows) -> None:
        self.state = state
        self.shadows = shadows
        self.handed: list[str] = []  # numbers that the forward function returns to its caller
        self.read_often = ReadOften(state)
        self.holders: dict[str, Scope] = {}  # the blocks of numbers that have rows

    def plan(self, scope: Scope, needs: dict[str, None], builder: Builder) -> dict[str, None]:
        """Write the code that restores values of a block; return those needed from outside."""
        state = self.state
        outer = {n: None for n in needs if n not in scope.own}
        own = [n for n in needs if n in scope.own]
        if scope.local:
            scope.is_read = bool(own)
            for identifier in own:
                self.shadows.want(identifier)
            return outer
        found = self.needs_of(scope, own, ())
        if instead := self.kept_instead(found, own):
            found = self.needs_of(scope, own, instead)
        outer |= found.outer
        again, counted, views, stored = found.again, found.counted, found.views, found.stored
        for identifier in stored:
            self.shadows.want(identifier)
        scope.stored = self.in_parts(scope, stored)
        if self.may_hand_over(scope):
            self.handed, scope.stored = state.handed_over(scope.stored), []
        scope.loop = self.loop_with_rows(scope)
        if scope.loop is not None or self.is_reserved(scope):
            for number in scope.stored:
                self.add_row(scope, number)
        self.write_pops(scope, builder)
        if scope.rows:
            outer[scope.own_loop.trips] = None
        for statement in self.shadows.sizes.statements(scope.block):
            if id(statement) in again:
                add_block(builder, [self.again(statement)])
            if isinstance(statement, Loop) and id(statement) in counted:
                builder.assign(name(statement.trips), trips_of(statement))
            if isinstance(statement, Let) and state.derivative(statement.target) in views:
                bar = name(state.derivative(statement.target))
                builder.assign(bar, self.shadows.shadow_of(statement, statement.target))
        return outer

    def needs_of(self, scope: Scope, own: list[str], kept: Collection[str]) -> Needs:
        """Return what it takes to have some values of a block, of which some are kept anyway."""
        state = self.state
        needs = Needs()
        measured: dict[str, str] = {}  # lengths, with the array in which each is read

        def visit(identifier: str, reader: str = "") -> None:
            if identifier not in state.types:
                return
            if reader:
                needs.reads.setdefault(reader, []).append(identifier)
            if identifier in needs.seen:
                return
            needs.seen.add(identifier)
            if identifier not in scope.own:
                if identifier in state.scopes.scope_of:
                    needs.outer[identifier] = None
                return
            maker = state.scopes.makers.get(identifier)
            if identifier in kept:
                needs.stored[identifier] = None
            elif isinstance(maker, Loop) and maker.body is scope.block:
                if identifier != maker.index:
                    needs.stored[identifier] = None
            elif identifier in state.arrays_of:
                if isinstance(maker, Let) and maker.rule.base is not None:
                    needs.views.add(identifier)
                    shown = self.shadows.shadow_of(maker, state.arrays_of[identifier])
                    for read in names_in(shown):
                        visit(read, identifier)
                else:
                    needs.stored[identifier] = None
            elif isinstance(maker, Loop) and maker.counted and identifier == maker.trips:
                needs.counted.add(id(maker))
                for read in (n for bound in maker.bounds or () for n in names_in(bound)):
                    visit(read, identifier)
            elif self.is_cheap(maker, identifier):
                if (array := self.array_measured(maker, scope)) and array not in needs.seen:
                    measured[identifier] = array
                    return
                needs.again.add(id(maker))
                for read in self.reads_again(maker):
                    visit(read, identifier)
            else:
                needs.stored[identifier] = None

        for identifier in own:
            visit(identifier)
        for identifier, array in measured.items():
            if array in needs.seen:
                needs.again.add(id(state.scopes.makers[identifier]))
                for read in self.reads_again(state.scopes.makers[identifier]):
                    visit(read, identifier)
            else:
                needs.stored[identifier] = None  # rather than the array
        return needs

    def kept_instead(self, needs: Needs, own: list[str]) -> list[str]:
        """Return the numbers that are kept in place of several that they are computed from."""
        kinds = {n: self.state.types[n] for n in needs.stored}
        numbers = types.Number, types.Boolean
        weights = {n: len(parts_of(k)) or 1 for n, k in kinds.items() if isinstance(k, numbers)}
        if sum(weights.values()) < 2:
            return []
        makers = self.state.scopes.makers
        floats = (n for n in needs.reads if isinstance(self.state.types[n], types.Float))
        made = ((n, maker.rule) for n in floats if isinstance(maker := makers.get(n), Let))
        single = {n for n, rule in made if isinstance(rule, rules.Elementary) and not rule.whole}
        return kept_instead(needs.reads, own, weights, single)

    def may_hand_over(self, scope: Scope) -> bool:
        """Whether the caller can keep what a function keeps: some numbers, as many in each call."""
        kinds = [self.state.types[n] for n in scope.stored]
        return (
            scope.kind == "function"
            and self.state.hands_over
            and len(kinds) <= _MOST
            and all(isinstance(kind, (types.Number, types.Boolean)) for kind in kinds)
            and not self.keeps_inside(scope.block)
        )

    def array_measured(self, maker: Any, scope: Scope) -> str:
        """Return the array of a block that would be kept for the extent that a statement reads."""
        array, _ = self.shadows.sizes.measured(maker) or ("", 0)
        if array not in scope.own:
            return ""
        of = self.state.scopes.makers[array]
        if isinstance(of, Loop):
            return array if of.body is scope.block else ""
        is_new = isinstance(of, Let) and (of.rule.fresh or of.rule.calls)
        return array if is_new and not self.is_cheap(of, array) else ""

    def in_parts(self, scope: Scope, stored: dict[str, None]) -> list[str]:
        """Return the names to keep, with complex numbers and tuples replaced by their parts."""
        state = self.state
        found: list[str] = []
        waiting = list(reversed(stored))
        while waiting:
            identifier = waiting.pop()
            kinds = parts_of(state.types[identifier])
            if not kinds:
                found.append(identifier)
                continue
            parts = []
            for text, kind in kinds.items():
                part = unused(f"{identifier}_{text}", state.types)
                parts.append(state.note(part, Role.KEPT, identifier))
                state.types[part] = kind
            scope.parts[identifier] = tuple(parts)
            waiting += reversed(parts)
        return found

    def again(self, maker: Any) -> Any:
        """Return the statement that recomputes the values of a statement."""
        if isinstance(maker, Let) and (loop := self.keeper(maker)) is not None:
            array = maker.rule.array
            expr = replace_names(maker.expr, {array: self.read_often.name_of(loop, array)})
            return Let(maker.target, expr, maker.line, maker.rule)
        return maker

    def keeper(self, let: Let) -> Loop | None:
        """Return the loop that keeps the elements of an array for a statement that reads one."""
        rule = let.rule
        if not isinstance(rule, rules.Load):
            return None
        is_whole = self.is_read_often(rule.array, let)
        return None if self.is_same(rule.array, let, is_whole) else self.read_often.loop_of(let)

    def reads_again(self, maker: Any) -> list[str]:
        """Return the names that recomputing a statement reads."""
        inside = list(walk([self.again(maker)]))
        made = {n for s in inside if s is not maker for n in defined(s)}
        return [n for s in inside for n in reads(s) if n not in made]

    def is_cheap(self, maker: Any, identifier: str) -> bool:
        """Whether a value is recomputed rather than kept."""
        if isinstance(maker, Let):
            rule = maker.rule
            if not rule.cheap and not self.is_computed_again(rule):
                return False
            if isinstance(rule, rules.View):
                return True
            if any(self.may_change(n) for n in defined(maker)):
                return False  # its elements may have changed since it was made
            if isinstance(rule, rules.Passive) and not self.reads_elements(maker.expr):
                return True
            is_whole = isinstance(rule, rules.Load) and self.is_read_often(rule.array, maker)
            kept = {rule.array} if identifier and self.keeper(maker) is not None else set()
            return all(
                self.is_same(n, maker, is_whole) for n in names_in(maker.expr) if n not in kept
            )
        if isinstance(maker, If):
            return all(
                isinstance(inner, (Let, If)) and self.is_cheap(inner, "")
                for block in (maker.then, maker.orelse)
                for inner in block
            )
        return False

    def is_computed_again(self, rule: Any) -> bool:
        """Whether a costly function of numbers is computed again."""
        return self.state.recomputes and isinstance(rule, rules.Elementary) and not rule.whole

    def reads_elements(self, expr: ast.expr) -> bool:
        """Whether a passive expression may read elements of an array, or fields of a record."""
        match expr:
            case ast.Attribute(ast.Name(id=base), attribute) if attribute in _ELEMENT_FREE:
                return not is_array(self.state.types.get(base))
            case ast.Call(ast.Name(id="len" | "np.shape" | "np.size")):
                return False
        return True

    def may_change(self, identifier: str) -> bool:
        """Whether a name refers to an array that may be written anywhere."""
        state = self.state
        if not is_array(state.types.get(identifier)):
            return False
        first = state.arrays.of(identifier)
        return first in state.unstable or state.arrays.is_stored(first)

    def is_read_often(self, array: str, statement: Statement) -> bool:
        """Whether loops around a statement read an element of an array more than once."""
        block, kind = self.state.scopes.scope_of.get(array), self.state.types[array]
        if block is None or not is_array(kind):
            return False
        scope: Any = self.state.scopes.scope_of[defined(statement)[0]]
        loops = 0
        while scope is not None and scope is not block:
            loops += scope.kind == "loop"
            scope = scope.parent
        return loops > kind.ndim

    def is_same(self, identifier: str, statement: Statement, is_whole: bool) -> bool:
        """Whether the value of a name cannot change from a statement onwards.

        That an array of an iteration does not change is used only if it is kept as a whole.
        """
        state = self.state
        kind = state.types.get(identifier)
        if is_array(kind):
            return state.keeps(identifier, statement, is_whole)
        return kind is None or not _may_change(kind) or not state.arrays.stores

    def places(self, scope: Scope, numbers: list[str]) -> list[ast.expr]:
        """Return the positions on the tape of the numbers of a block.

        A reserved loop has one row of the tape for each of them, with an element per iteration.
        """
        holder = scope.loop or scope
        if not holder.rows:
            return [item(name("tape"), after_top(k)) for k in range(len(numbers))]
        loop = holder.own_loop
        assert loop.bounds is not None
        low, _, step = loop.bounds
        turn: ast.expr = name(str(loop.index))
        turn = turn if is_number(low, 0) else binary(turn, "-", low)
        turn = turn if is_number(step, 1) else binary(turn, "//", step)
        return [item(name(holder.rows[number]), turn) for number in numbers]

    def write_rows(self, builder: Builder, scope: Scope) -> None:
        """Write the code that names the rows of a reserved loop.

        They are separate arrays so that compilers see that iterations access neighbours.
        """
        trips = name(scope.own_loop.trips)
        for number, row in enumerate(dict.fromkeys(scope.rows.values())):
            place = binary(name("top"), "+", times(number, trips)) if number else name("top")
            builder.assign(name(row), call_of("runtime.row", name("tape"), place, trips))

    def is_reserved(self, scope: Scope) -> bool:
        """Whether a block is the body of a loop whose part of the tape is reserved at its start."""
        return (
            scope.kind == "loop"
            and scope.own_loop.counted
            and bool(scope.stored or scope.rows)
            and not any(is_array(self.state.types[n]) for n in scope.stored)
            and not self.keeps_inside(scope.block)
        )

    def add_row(self, scope: Scope, number: str) -> None:
        """Give a number of a block a row: one of other branches, or a new one."""
        state, holder = self.state, scope.loop or scope
        users: dict[str, list[Scope]] = {}
        for other, row in holder.rows.items():
            users.setdefault(row, []).append(self.holders[other])
        free = [r for r, scopes in users.items() if all(map(scope.excludes, scopes))]
        if not free:
            free = [unused(f"{number}_row", state.types)]
            state.types[free[0]] = types.Array(types.float64, 1, "C")
        holder.rows[number] = free[0]
        self.holders[number] = scope

    def loop_with_rows(self, scope: Scope) -> Scope | None:
        """Return the loop around a branch that has rows for the numbers of its branches.

        Whatever its iterations keep has to be numbers: then its part of the tape is reserved.
        """
        state, loop = self.state, scope
        while loop.kind in ("then", "else") and loop.parent is not None:
            loop = loop.parent
        if loop is scope or loop.kind != "loop" or not loop.own_loop.counted:
            return None
        if any(may_share(state.types.get(c.phi)) for c in loop.own_loop.carried):
            return None
        for statement in walk(loop.block):
            if isinstance(statement, Loop):
                return None
            rule: Any = statement.rule if isinstance(statement, Let) else None
            if hasattr(rule, "has_forward") and rule.has_forward(
                state, statement, for_numbers=False
            ):
                return None
            is_view = getattr(rule, "base", None) is not None
            if not is_view and any(may_share(state.types.get(n)) for n in defined(statement)):
                return None  # it may have to be kept
            if isinstance(statement, Let) and not is_view:
                if self.reads_what_changes(statement, loop):
                    return None  # a copy may have to be kept
        return loop

    def reads_what_changes(self, let: Let, loop: Scope) -> bool:
        """Whether an operation reads a whole array that is written to, in the loop or after it."""
        state = self.state
        if isinstance(let.expr, (ast.Attribute, ast.Subscript)):  # an extent, or an element
            return False
        arrays = [n for n in names_in(let.expr) if is_array(state.types.get(n))]
        return any(
            state.writes.may_change(n, loop.block) or not self.is_same(n, let, is_whole=False)
            for n in arrays
        )

    def write_pops(self, scope: Scope, builder: Builder) -> None:
        """Write the code that pops values from the tape."""
        state = self.state
        stored = scope.stored
        arrays = [n for n in stored if is_array(state.types[n])]
        numbers = [n for n in stored if n not in arrays]
        if stored:
            state.uses_tape = True
        places = self.places(scope, numbers)
        for identifier in reversed(arrays):
            add_pop(builder, identifier, self.part_kept(identifier), self.kept_as(identifier))
        in_rows = bool((scope.loop or scope).rows)
        if numbers:
            if not in_rows:
                builder.update(name("top"), "-", ast.Constant(len(numbers)))
            for place, identifier in zip(places, numbers, strict=True):
                kind = state.types[identifier]
                bits = call_of("runtime.from_bits", place)
                if isinstance(kind, types.Float):
                    value = place if kind == types.float64 else call_of(f"np.{kind}", place)
                elif isinstance(kind, types.Boolean):
                    value = compare(bits, ast.NotEq, ast.Constant(0))
                elif isinstance(kind, types.Integer):
                    value = bits if kind == types.int64 else call_of(f"np.{kind}", bits)
                elif like := member_like(kind, state.function.statics):
                    value = call_of("runtime.member", name(like), bits)
                else:
                    self.refuse_keeping(identifier, kind)
                builder.assign(name(identifier), value)
        for identifier, parts in reversed(scope.parts.items()):
            # complex() of two floats has their precision
            is_complex = isinstance(state.types[identifier], types.Complex)
            joined = call_of("complex", *names(parts)) if is_complex else tuple_of(names(parts))
            builder.assign(name(identifier), joined)

    def part_kept(self, identifier: str) -> str:
        """Return what of an array is on the tape: its elements, or a reference to the array.

        The reverse code writes to arrays of cotangents, which the rest of the code reads.
        """
        state = self.state
        is_cotangent = identifier in state.arrays_of
        if is_cotangent or not is_kept_by_elements(state.types[identifier]):
            return "array"
        is_copy = identifier in state.kept_elements or identifier in state.added
        is_new = is_copy or self.is_made_each_time(identifier)
        return "elements" if is_new else "array"

    def is_made_each_time(self, array: str) -> bool:
        """Whether a block makes an array, or each iteration of a loop makes the one for the next.

        Otherwise one array may be kept many times.
        """
        state = self.state
        scope, root = state.scopes.scope_of[array], state.writes.root(array)
        loop = state.scopes.makers.get(root)
        if isinstance(loop, Loop):
            following = next((c.next for c in loop.carried if c.phi == root), None)
            root = state.writes.root(following.id) if isinstance(following, ast.Name) else ""
        return state.scopes.scope_of.get(root) is scope and state.writes.is_new(root)

    def kept_as(self, identifier: str) -> ast.expr:
        """Return the expression for the type of an array on the tape."""
        kind = self.state.types[identifier]
        if not isinstance(kind.dtype, (types.Number, types.Boolean)):
            self.refuse_keeping(identifier, kind)
        return name(f"runtime.{runtime.kind_name(kind)}")

    def refuse_keeping(self, identifier: str, kind: Any) -> None:
        way_out = "use arrays of floats or integers"
        if isinstance(kind, types.BaseTuple):
            way_out = "use a variable for each of its parts"
        elif isinstance(kind, types.EnumMember):
            way_out = "use the value of the member"
        self.state.refuse(
            f"cannot keep {identifier}, of type {kind}, for the reverse pass; {way_out}",
            self.state.scopes.makers[identifier].line,
        )

    def write_pushes(self, builder: Builder, scope: Scope) -> None:
        """Write the code that pushes values onto the tape."""
        stored = scope.stored
        arrays = [n for n in stored if is_array(self.state.types[n])]
        numbers = [n for n in stored if n not in arrays]
        for identifier, parts in scope.parts.items():
            whole = name(identifier)
            if isinstance(self.state.types[identifier], types.Complex):
                builder.assign(name(parts[0]), attribute(whole, "real"))
                builder.assign(name(parts[1]), attribute(whole, "imag"))
            else:
                builder.assign(tuple_of(names(parts)), whole)
        in_rows = bool((scope.loop or scope).rows)
        if numbers:
            if not in_rows:
                add_growth(builder, after_top(len(numbers)))
            for place, identifier in zip(self.places(scope, numbers), numbers, strict=True):
                kind = self.state.types[identifier]
                number = name(identifier)
                is_float = isinstance(kind, types.Float)
                builder.assign(place, number if is_float else call_of("runtime.to_bits", number))
            if not in_rows:
                builder.update(name("top"), "+", ast.Constant(len(numbers)))
        for identifier in arrays:
            array = self.state.kept_elements.get(identifier, identifier)
            add_push(builder, array, self.part_kept(identifier), self.kept_as(identifier))

    def write_elements_pushes(self, builder: Builder, loop: Loop) -> None:
        """Write the code that pushes the elements of arrays that a loop has read often."""
        for array in self.read_often.kept_by(loop):
            add_push(builder, array, "elements", self.kept_as(array))

    def write_elements_pops(self, builder: Builder, loop: Loop) -> None:
        """Write the code that pops them, before the reverse of the loop."""
        for array, found in reversed(self.read_often.kept_by(loop).items()):
            add_pop(builder, found, "elements", self.kept_as(array))

    def reserve(self, builder: Builder, loop: Loop, scope: Scope) -> None:
        """Write the code that makes the tape large enough for a whole loop."""
        needed = name(f"needed_{loop.trips}")
        builder.assign(name(loop.trips), trips_of(loop))
        builder.assign(needed, binary(name("top"), "+", self.needed(loop, scope)))
        add_growth(builder, needed)
        self.write_rows(builder, scope)

    def needed(self, loop: Loop, scope: Scope) -> ast.expr:
        """Return how many numbers a loop with rows keeps."""
        return times(len({*scope.rows.values()}), name(loop.trips))

    def keeps_inside(self, block: Block, *, for_numbers: bool = False) -> bool:
        """Whether inner blocks keep anything on the tape, or calls have a forward function.

        Those that only hand numbers over count if asked `for_numbers`.
        """
        for statement in block:
            if isinstance(statement, If):
                inner = [statement.then, statement.orelse]
            elif isinstance(statement, Loop):
                inner = [statement.body]
            else:
                if isinstance(statement, Let) and hasattr(statement.rule, "has_forward"):
                    rule = statement.rule
                    if rule.has_forward(self.state, statement, for_numbers=for_numbers):
                        return True
                continue
            if isinstance(statement, Loop) and self.read_often.kept_by(statement):
                return True
            for part in inner:
                scope = self.state.scopes.blocks[id(part)]
                if scope.rows or (scope.stored and scope.loop is None):
                    return True
                if self.keeps_inside(part, for_numbers=for_numbers):
                    return True
        return False


_MOST = 32  # numbers that a function returns to its caller rather than keeping them
_FEW = 4  # costly functions, which take as long as a call takes longer with the tape


def is_short(function: FunctionIR) -> bool:
    """Whether computing all values of a function again takes less time than using the tape."""
    statements = list(walk(function.body))
    costly = sum(isinstance(s, Let) and not s.rule.cheap for s in statements)
    return costly <= _FEW and not any(isinstance(s, Loop) for s in statements)


def parts_of(kind: Any) -> dict[str, Any]:
    """Return the types of the parts that a value is kept as, by name; empty if it is kept whole."""
    if isinstance(kind, types.Complex):
        return dict.fromkeys(("real", "imag"), kind.underlying_float)
    if isinstance(kind, (types.Tuple, types.UniTuple)):
        return {f"item_{k}": item for k, item in enumerate(kind)}
    return {}


_ELEMENT_FREE = SHAPE_ATTRIBUTES | {"T"}


def _may_change(kind: Any) -> bool:
    """Whether values of a type hold anything mutable."""
    if isinstance(kind, types.BaseTuple):
        return any(map(_may_change, kind))
    fixed = (
        types.Number,
        types.Boolean,
        types.NoneType,
        types.UnicodeType,
        types.RangeType,
        types.DType,
        types.Function,
        types.Dispatcher,
        types.Module,
        types.NumberClass,
        types.TypeRef,
    )
    return not isinstance(kind, fixed)
