"""Lowering of the typed normal form to the form that is differentiated.

Tuples are unpacked, names of the same array are merged, values that are undefined on some path
become definite, and each `Let` gets the rule of its operation (`tapegrad.transform.rules.base`).
"""

from __future__ import annotations

import ast
import builtins
from collections.abc import Hashable
from typing import Any

import numba
import numpy as np
from numba.core import types

from tapegrad.transform.errors import TransformError
from tapegrad.transform.frontend.constants import is_followed, member_like
from tapegrad.transform.ir import (
    Atom,
    Block,
    Carried,
    Effect,
    FunctionIR,
    If,
    Let,
    Loop,
    Phi,
    Store,
    Structure,
    constant,
    leaf_names,
    leaves_of,
    name,
    names_in,
    names_of,
    take,
    walk,
)
from tapegrad.transform.kinds import holds_real, is_array, is_complex, is_real, may_share
from tapegrad.transform.lowering import callees, operations, static_values, tuples, without_axes
from tapegrad.transform.lowering.computed_calls import note_computed
from tapegrad.transform.lowering.merging import ZEROS, check_merge, check_same, converted_at_end
from tapegrad.transform.lowering.narrow import refuse_narrow
from tapegrad.transform.lowering.partners import add_partners
from tapegrad.transform.lowering.same_values import INPLACE_CALLS, SameValues, kind_of_operation
from tapegrad.transform.lowering.stand_ins import has_stand_in
from tapegrad.transform.lowering.subscripts import taken_apart
from tapegrad.transform.protocols import Program
from tapegrad.transform.rules import base as rules
from tapegrad.transform.rules.numpy_functions.makers import Literal
from tapegrad.transform.syntax import copied, has_starred, key_of, name_of, text_of

WHOLE = ast.Slice(None, None, None)


class Lowering:
    """Lowers one function of a program."""

    def __init__(self, function: FunctionIR, program: Program) -> None:
        self.function = function
        self.program = program
        self.call: ast.Call | None = None  # the call being lowered, with its original names
        self.types = dict(function.types)
        self.same = SameValues(self.types)
        self.parts: dict[str, Any] = {}  # atoms and structures that replace names
        self.block: Block = []
        self.taken = names_of(function)
        self.statics: dict[str, Any] = {}
        self.line = function.source.tree.lineno
        self.inplaces: list[tuple[str, str, int]] = []
        self.chosen_numbers: set[str] = set()  # by np.where, of which numba makes arrays
        self.views: dict[str, Hashable] = {}  # subscripts, by the names of the views they made
        # names of values by the expressions that compute them, and those of elements of arrays,
        # until an array is written
        self.known: dict[Hashable, str] = {}
        self.loaded: dict[Hashable, str] = {}

    def run(self) -> FunctionIR:
        function = self.function
        refuse_narrow(function)
        for text, value in function.statics.items():
            origin = ("name", function.source.function, text)
            found = self.program.static(text, value, origin)
            self.statics[found] = value
            if found != text:
                self.parts[text] = name(found)
            if is_followed(value) or has_stand_in(value):
                self.types[found] = static_values.type_of_constant(self, found)
            elif isinstance(value, tuple) and holds_real(
                kind := static_values.type_of_constant(self, found)
            ):
                self.parts[text] = static_values.parts_of_constant(self, name(found), value, kind)
        self.same.find(function.body)
        for param in function.params:
            kind = self.types.get(f"arg.{param}", self.types[param])
            if isinstance(kind, types.BaseTuple) and holds_real(kind):
                self.parts[param] = tuples.take_apart(self, name(param), kind, param)
        self.statements(function.body)
        add_partners(self, self.block)
        note_computed(self.block)
        result = (
            None if function.result is None else self.named_numbers(self.value(function.result))
        )
        for value in (*self.parts.values(), result):
            if isinstance(value, Structure):
                tuples.note_classes(self, value.type)
        return FunctionIR(
            function.name,
            function.params,
            self.block,
            result,
            function.source,
            self.statics,
            self.types,
            self.inplaces,
            equal=function.equal,
        )

    def named_numbers(self, value: Any) -> Any:
        """Return a result in which constant floats have names."""
        if isinstance(value, Structure):
            return Structure(value.type, [self.named_numbers(item) for item in value.items])
        match value:
            case ast.Constant(float() | complex()):
                target = self.fresh("result")
                self.types[target] = self.type_of(value)
                self.block.append(Let(target, value, self.line, rules.Passive(True)))
                return name(target)
        return value

    def refuse(self, what: str) -> TransformError:
        return TransformError(what, self.function.source, self.line)

    # -- names --------------------------------------------------------------------------------

    def value(self, atom: Atom) -> Any:
        """Return the current value of an atom: an atom or a structure."""
        atom = self.same.final(atom)
        return self.parts.get(name_of(atom), atom)

    def type_of(self, value: Any) -> Any:
        """Return the type of a value."""
        match value:
            case Structure():
                return value.type
            case ast.Constant(number):
                return types.unliteral(numba.typeof(number))
            case ast.Name(id=text):
                found = self.types.get(text)
                return static_values.type_of_constant(self, text) if found is None else found
        return types.none  # a list, for example

    def types_of(self, *values: Any) -> set[Any]:
        """Return the types of values, ignoring None."""
        return {self.type_of(value) for value in values if value is not None}

    def fresh(self, stem: str) -> str:
        return take(stem, self.taken)

    def resolve(self, node: Any) -> Any:
        """Return an expression with every name replaced by its current value."""

        class Replace(ast.NodeTransformer):
            def visit_Name(inner, node: ast.Name) -> ast.expr:  # noqa: N805
                value = self.value(node)
                if isinstance(value, Structure):
                    tuples.note_classes(self, value.type)
                    return value.build(lambda leaf: leaf)
                return value

        return None if node is None else Replace().visit(copied(node))

    # -- statements ---------------------------------------------------------------------------

    def statements(self, block: Block) -> None:
        for statement in block:
            self.line = getattr(statement, "line", self.line) or self.line
            match statement:
                case Let():
                    self.let(statement)
                case Store():
                    self.store(statement)
                case Effect(inner, line):
                    self.block.append(Effect(self.resolve(inner), line))
                case If():
                    self.branch(statement)
                case _:
                    self.loop(statement)

    def inside(self, block: Block) -> Block:
        outer, self.block = self.block, []
        known, loaded = self.known, self.loaded
        self.known, self.loaded = dict(known), dict(loaded)
        self.statements(block)
        found, self.block = self.block, outer
        self.known, self.loaded = known, loaded
        if self.writes(block):
            self.loaded.clear()
        return found

    def writes(self, block: Block) -> bool:
        """Whether a block may write an array."""
        return any(
            isinstance(s, Store) or (isinstance(s, Let) and self.is_writing(s)) for s in walk(block)
        )

    def is_writing(self, let: Let) -> bool:
        """Whether a call may write an array: one that it is given."""
        if not callees.may_write(let, self.function.statics):
            return False
        names = [n for n in names_in(let.expr) if n not in self.function.statics]
        return any(may_share(self.types.get(n)) for n in names)

    def branch(self, statement: If) -> None:
        cond = self.resolve(statement.cond)
        then, orelse = self.inside(statement.then), self.inside(statement.orelse)
        phis: list[Phi] = []
        statement.phis = [phi for phi in statement.phis if phi.target in self.types]
        for phi in statement.phis:
            kind = self.types[phi.target]
            one, two = (self.merged(phi, side, kind) for side in ("then", "orelse"))
            check_merge(self, kind, one, two)
            if not statement.certain:
                check_same(self, self.types_of(one, two))
            target: Any = name(phi.target)
            if isinstance(one, Structure) or isinstance(two, Structure):
                target = self.parts[phi.target] = tuples.named(self, kind, phi.target)
            ones = [None] * len(leaves_of(target)) if one is None else leaves_of(one)
            twos = [None] * len(leaves_of(target)) if two is None else leaves_of(two)
            for leaf, first, second in zip(leaf_names(target), ones, twos, strict=True):
                leaf_kind = self.types[leaf]
                first = converted_at_end(self, then, self.definite(first, leaf_kind), leaf_kind)
                second = converted_at_end(self, orelse, self.definite(second, leaf_kind), leaf_kind)
                phis.append(Phi(leaf, first, second))
        self.block.append(If(cond, then, orelse, phis, statement.line))

    def merged(self, phi: Phi, side: str, kind: Any) -> Any:
        """Return the value of a phi on one side; None if undefined, or unread and mistyped."""
        found = self.typed(getattr(phi, side))
        if found is not None and phi.unread == side and self.type_of(found) != kind:
            return None
        return found

    def typed(self, atom: Atom | None) -> Any:
        """Return the current value of an atom, None if it never has one."""
        value = None if atom is None else self.value(atom)
        if isinstance(value, ast.Name) and value.id not in self.types:
            return value if value.id in self.statics else None
        return value

    def definite(self, value: Atom | None, kind: Any) -> Atom:
        """Return a value, or an arbitrary one of its type if it is undefined."""
        if value is not None:
            return value
        if kind in ZEROS:
            return constant(ZEROS[kind])
        if isinstance(kind, types.Number):
            return self.converted(constant(0), kind)
        if is_array(kind):
            shape = ast.Tuple([constant(0)] * kind.ndim, ast.Load())
            arguments: list[Atom] = [shape, name(f"np.{kind.dtype}")]
            call = ast.Call(name("np.empty"), arguments, [])
            target = self.fresh("nothing")
            self.types[target] = types.Array(kind.dtype, kind.ndim, "C")
            self.block.append(Let(target, call, self.line, rules.Alloc(arguments)))
            if kind.layout == "F" and kind.ndim > 1:
                turned = self.fresh("nothing")
                self.types[turned] = kind.copy(readonly=False)
                view = ast.Attribute(name(target), "T", ast.Load())
                self.block.append(Let(turned, view, self.line, rules.View(target)))
                return name(turned)
            return name(target)
        if like := member_like(kind, self.function.statics):
            return self.value(name(like))
        raise self.refuse(
            f"a value of type {kind} is assigned on some paths only; assign it before"
        )

    def conversion(self, value: Atom, kind: Any, target: str) -> Let:
        """Return the conversion of a number to a type."""
        self.types[target] = kind
        call = ast.Call(name(f"np.{kind}"), [value], [])
        is_smooth = is_real(self.type_of(value))
        rule = rules.Linear(value, False, self) if is_smooth else rules.Passive(True)
        return Let(target, call, self.line, rule)

    def converted(self, value: Atom, kind: Any) -> ast.Name:
        """Append the conversion of a number to a type."""
        self.block.append(let := self.conversion(value, kind, self.fresh("t")))
        return name(let.target)

    def signed(self, bound: Atom) -> Atom:
        """Return a bound of a range as an int64, so that bounds can be subtracted."""
        return bound if self.type_of(bound) == types.int64 else self.converted(bound, types.int64)

    def loop(self, loop: Loop) -> None:
        if self.writes([loop]):
            self.loaded.clear()
        bounds: Any = loop.bounds
        if bounds is not None:
            bounds = tuple(self.signed(self.resolve(bound)) for bound in bounds)
        entries: list[tuple[Carried, Any, Any, Any]] = []
        for entry in loop.carried:
            if entry.phi not in self.types:
                continue  # it never has a value
            kind = self.types[entry.phi]
            init = self.typed(entry.init)
            phi: Any = name(entry.phi)
            out: Any = name(entry.out)
            if isinstance(kind, types.BaseTuple) and holds_real(kind):
                phi = self.parts[entry.phi] = tuples.named(self, kind, entry.phi)
                out = self.parts[entry.out] = tuples.named(self, kind, entry.out)
            entries.append((entry, phi, init, out))
        index = loop.index
        if index is not None and self.types.setdefault(index, types.int64) != types.int64:
            index = self.fresh("index")
            self.types[index] = types.int64
        test = self.inside(loop.test)
        cond = self.resolve(loop.cond)
        body = self.inside(loop.body)
        own = loop.index
        if index is not None and own is not None and index != own:
            body.insert(0, self.conversion(name(index), self.types[own], own))
        carried = []
        for entry, phi, init, out in entries:
            following = self.typed(entry.next)
            check_merge(self, self.types[entry.phi], init, following)
            if not loop.certain:
                before = {self.types[entry.phi]} if loop.entered else self.types_of(init)
                check_same(self, before | self.types_of(following))
            count = len(leaves_of(phi))
            inits = [None] * count if init is None else leaves_of(init)
            nexts = [None] * count if following is None else leaves_of(following)
            for p, i, n, o in zip(leaf_names(phi), inits, nexts, leaf_names(out), strict=True):
                kind = self.types[p]
                self.types[o] = kind
                i = converted_at_end(self, self.block, self.definite(i, kind), kind)
                n = converted_at_end(self, body, self.definite(n, kind), kind)
                carried.append(Carried(p, i, n, o))
        self.types[loop.trips] = types.int64
        exit_atom = self.resolve(loop.exit)
        made = Loop(index, bounds, test, cond, body, exit_atom, carried, loop.trips, loop.line)
        made.parallel, made.memory = loop.parallel, self.resolve(loop.memory)
        self.block.append(made)

    def store(self, store: Store) -> None:
        self.loaded.clear()
        array = self.value(name(store.array))
        assert isinstance(array, ast.Name)
        if isinstance(self.type_of(array), types.Number):
            raise self.refuse(
                "cannot differentiate a write to what np.where of numbers returns, an array "
                "without axes; write s = x for s[()] = x"
            )
        value = self.value(store.value)
        if isinstance(value, Structure):
            value = self.literal(value)
        if without_axes.has_none(self, value):
            value = without_axes.element(self, value)
        stored = name_of(value)
        kind = self.types.get(stored)
        if not is_array(self.type_of(array)) and is_real(kind):
            held = self.fresh("held")
            self.types[held] = kind
            what = f"the store of a value, {operations.CONTAINED}"
            self.block.append(Let(held, value, store.line, rules.Unknown([stored], what)))
        index = taken_apart(self, self.resolve(store.index), store.line)
        part = key_of(ast.Subscript(array, index, ast.Load()))
        if is_array(kind):
            same = self.views.get(stored) == part
            if same and not store.op:
                return  # the view was changed in place
            if store.op and not same:
                self.inplaces.append((array.id, stored, store.line))
        made = Store(array.id, index, value, store.op, store.line, every=store.every)
        self.block.append(made)

    def choice(self, let: Let, kind: Any) -> If | None:
        """Return the branch that ``np.where`` of numbers is, None for arrays.

        numba makes an array without axes, which is used like a number.
        """
        assert isinstance(let.expr, ast.Call)
        arguments = let.expr.args
        if not is_array(kind) or kind.ndim or len(arguments) != 3 or let.expr.keywords:
            return None
        condition, *values = map(self.value, arguments)
        if any(isinstance(v, Structure) or is_array(self.type_of(v)) for v in (condition, *values)):
            return None
        for k, found in enumerate(map(self.type_of, values)):
            if isinstance(found, (types.Integer, types.Boolean)) and found != kind.dtype:
                values[k] = self.converted(values[k], kind.dtype)
            elif found != kind.dtype:
                return None
        self.types[let.target] = kind.dtype
        self.chosen_numbers.add(let.target)
        return If(condition, [], [], [Phi(let.target, *values)], let.line)

    def literal(self, value: Structure) -> ast.Name:
        """Append the array that a stored tuple of numbers becomes."""
        if any(isinstance(item, Structure) for item in value.items):
            raise self.refuse(
                "cannot differentiate the store of tuples in a tuple; store the items"
            )
        target = self.fresh("t")
        has_complex = any(is_complex(self.type_of(item)) for item in value.items)
        kind = types.complex128 if has_complex else types.float64
        self.types[target] = types.Array(kind, 1, "C")
        call = ast.Call(name("np.array"), [ast.List(value.items, ast.Load())], [])
        places: list[Any] = [((k,), item) for k, item in enumerate(value.items)]
        self.block.append(Let(target, call, self.line, Literal(places, self)))
        return name(target)

    def let(self, let: Let) -> None:
        target, expr = let.target, let.expr
        if self.is_writing(let):
            self.loaded.clear()
        match expr:
            case ast.Call(function, args, keywords) if has_starred(args):
                expr = ast.Call(function, tuples.unpacked(self, args), keywords)
        kind = self.types.get(target)
        of_reals = isinstance(kind, types.BaseTuple) and holds_real(kind)
        rest: ast.expr | None = expr
        match expr:
            case ast.Tuple(items) if kind is not None and holds_real(kind):
                self.parts[target] = Structure(kind, list(map(self.value, items)))
                return
            case ast.BinOp(one, op, two) if of_reals:
                ends = [tuples.parts_of(self, end) for end in (one, two)]
                if isinstance(op, ast.Add) and ends[0] is not None and ends[1] is not None:
                    self.parts[target] = Structure(kind, [*ends[0], *ends[1]])
                    return
            case ast.Subscript() | ast.Attribute():
                rest = self.part(let, expr)
                kind = self.types.get(target)
            case ast.Call(ast.Attribute(base, method), args):
                if self.method(let, self.value(base), method, args):
                    return
            case ast.Call(ast.Name(id=callee)):
                rest = self.function_call(let, expr, callee, kind)
        if rest is None:
            return
        call = rest if isinstance(rest, ast.Call) else None
        expr = self.resolve(rest)
        match expr:
            case ast.Subscript(base, index) if is_array(self.type_of(base)):
                expr = ast.Subscript(base, taken_apart(self, index, let.line), ast.Load())
        expr = without_axes.zeros_of(self, without_axes.of_numbers(self, expr, kind))
        self.call = call  # not before: operands may have become calls
        found = operations.find(self, expr, kind)
        expr = found.written_as or expr
        if of_reals:
            structure = tuples.named(self, kind, target)
            self.parts[target] = structure
            pattern = text_of(tuples.pattern(structure))
            leaves = [leaf.id for leaf in structure.leaves()]
            self.block.append(Let(pattern, expr, let.line, found, leaves))
            return
        if isinstance(found, rules.View) and isinstance(expr, ast.Subscript):
            self.views[target] = key_of(expr)
        if let.every:
            found.is_passing = True
        if (known := self.repeated(found, kind)) is not None:
            key = key_of(expr)
            if key in known:
                self.parts[target] = name(known[key])
                return
            known[key] = target
        self.block.append(Let(target, expr, let.line, found))

    def part(self, let: Let, expr: ast.Subscript | ast.Attribute) -> ast.expr | None:
        """Lower an item or attribute; return the expression that remains, None if there is none.

        An array without axes is a number here.
        """
        base = self.value(expr.value)
        if isinstance(base, Structure):
            tuples.part(self, let, base)
            return None
        of = self.type_of(base)
        match expr:
            case ast.Subscript() if is_real(of) and not is_array(of):
                self.parts[let.target] = base
                return None
            case ast.Attribute(array, "flat") if is_array(of) and of.layout == "C":
                self.types[let.target] = types.Array(of.dtype, 1, "C")
                method = ast.Attribute(array, "reshape", ast.Load())  # which has the same order
                return ast.Call(method, [constant(-1)], [])
        return expr

    def method(self, let: Let, base: Any, method: str, args: list[ast.expr]) -> bool:
        """Lower the call of a method, if it is a read of the element or a store."""
        match method, args:
            case "item", [] if is_real(of := self.type_of(base)) and not is_array(of):
                self.parts[let.target] = base
            case "item", [] if without_axes.has_none(self, base):
                self.parts[let.target] = without_axes.element(self, base)
            case "fill", [value] if is_array(self.type_of(base)):
                self.store(Store(base.id, WHOLE, value, "", let.line))
            case _:
                return False
        return True

    def function_call(self, let: Let, expr: ast.Call, callee: str, kind: Any) -> ast.Call | None:
        """Lower the call of a function; return the call that remains, None if there is none."""
        value = self.function.statics.get(callee)
        expr = callees.with_declared_types(self, value, expr)
        if value is np.where and (choice := self.choice(let, kind)) is not None:
            self.branch(choice)
            return None
        if callee in INPLACE_CALLS:
            self.inplace(let, callee, kind)
            return None
        for given, differentiable in callees.DIFFERENTIABLE:
            if value is given:
                text = f"runtime.{differentiable.__name__}"
                expr = ast.Call(name(text), expr.args, [])
                value = self.statics[text] = differentiable
        if isinstance(value, type) and issubclass(value, tuple) and hasattr(value, "_fields"):
            if kind is not None and holds_real(kind):
                items = list(map(self.value, expr.args))
                named = {k.arg: self.value(k.value) for k in expr.keywords}
                items += [named[field] for field in value._fields[len(items) :]]
                self.parts[let.target] = Structure(kind, items)
                return None
        if value in (builtins.min, builtins.max, builtins.sum):
            arguments: Any = expr.args
            if len(arguments) == 1:
                arguments = tuples.parts_of(self, arguments[0])
            one_by_one = arguments is not expr.args or len(arguments or ()) > 2
            if arguments and one_by_one and not expr.keywords:
                self.pairwise(let, value, arguments)
                return None
        return expr

    def pairwise(self, let: Let, function: Any, items: list[Atom]) -> None:
        """Lower ``sum``, ``min`` or ``max`` of several numbers, two at a time."""
        kind = self.types[let.target]
        first = items[0]
        for position, second in enumerate(items[1:], 2):
            last = position == len(items)
            target = let.target if last else self.fresh("t")
            self.types[target] = kind
            pair: ast.expr = ast.BinOp(first, ast.Add(), second)
            if function is not builtins.sum:
                pair = ast.Call(name(function.__name__), [first, second], [])
            self.let(Let(target, pair, let.line))
            first = name(target)
        if len(items) == 1:
            self.parts[let.target] = first

    def repeated(self, rule: Any, kind: Any) -> dict[Hashable, str] | None:
        """Return the known results of such operations, None if they may differ each time."""
        if is_array(kind):
            return None
        if isinstance(rule, rules.Load):
            return self.loaded
        return self.known if isinstance(rule, rules.Elementary) and not rule.whole else None

    def inplace(self, let: Let, callee: str, kind: Any) -> None:
        """Lower an augmented assignment of a name."""
        assert isinstance(let.expr, ast.Call)
        old, value = (self.value(argument) for argument in let.expr.args)
        node = INPLACE_CALLS[callee]
        if not is_array(kind):
            self.let(Let(let.target, ast.BinOp(old, node, value), let.line))
            return
        if not is_array(self.type_of(old)):
            raise self.refuse(
                "cannot differentiate an augmented assignment of what np.where of numbers returns, "
                "an array without axes; write s = s + x for s += x"
            )
        if kind.ndim == 0:
            result = self.fresh("t")
            self.types[result] = kind.dtype
            self.let(Let(result, ast.BinOp(old, node, value), let.line))
            self.store(Store(old.id, ast.Tuple([], ast.Load()), name(result), "", let.line))
            return
        index = WHOLE
        if is_array(self.types.get(name_of(value))):
            self.inplaces.append((old.id, value.id, let.line))
        if op := {ast.Add: "+", ast.Sub: "-"}.get(type(node)):
            self.block.append(Store(old.id, index, value, op, let.line))
            return
        result = self.fresh("t")
        self.types[result] = kind_of_operation(node, tuple(map(self.type_of, (old, value))))
        self.let(Let(result, ast.BinOp(old, node, value), let.line))
        self.block.append(Store(old.id, index, name(result), "", let.line, kind.ndim))
