"""One path through forward code, or code of forward mode, and its effects on numbers and arrays.

The outcome of every test and the trip count of every loop are drawn at random. A name assigned from
another one has the same `Number`; a view of an array is a `Handle` of the same memory.
"""

from __future__ import annotations

import ast
from collections.abc import Hashable, Iterator
from typing import Any

from tapegrad.transform.facts import NEW_METHODS
from tapegrad.transform.syntax import leaves, text_of
from tapegrad.transform.verifier.code import (
    Code,
    call_in,
    called,
    calls,
    is_in,
    method_of,
    module_call,
    names_in,
    names_of,
    nodes_of,
    pairs_in,
    results_of,
    sign_of,
    targets,
)
from tapegrad.transform.verifier.events import Event, Handle, Memory, Number, Operand, Value
from tapegrad.transform.verifier.frames import MOST_TURNS, AbandonedError, Choices, Frame
from tapegrad.transform.verifier.linear import Maps
from tapegrad.transform.verifier.memory import SHAPE, shows
from tapegrad.transform.verifier.operands import SOME, operands
from tapegrad.transform.verifier.outcomes import Outcomes
from tapegrad.transform.verifier.static import counters, names_of_loop
from tapegrad.transform.verifier.tape import mentions


class Walk:
    """A walk along one path through forward code.

    Parameters
    ----------
    checked
        The pass over values, which knows the arrays, and which loops reverse which.
    choices
        The random choices.
    """

    def __init__(self, checked: Any, choices: Choices) -> None:
        self.choices = choices
        self.outcomes = Outcomes(choices)
        self.checked = checked
        self.cotangents = checked.cotangents
        self.bars: set[str] = self.cotangents.names
        self.facts = checked.static
        self.arrays: set[str] = self.facts.arrays
        self.maps = Maps(choices.draw.getrandbits(40))
        self.events: list[Event] = []
        self.trips: dict[Hashable, int] = {}
        self.code: Code = checked.codes[0]
        self.returned: list[ast.expr] = []
        self.leaving: bool | None = None  # whether the current iteration should be the last
        self.is_forward = True  # otherwise only code for cotangents is processed

    @property
    def frame(self) -> Frame:
        """The current names."""
        return self.outcomes.frame

    @frame.setter
    def frame(self, frame: Frame) -> None:
        self.outcomes.frame = frame

    def wrong(self, what: str, node: ast.AST) -> Exception:
        return self.code.wrong(what, node)

    # -- values -------------------------------------------------------------------------------

    def step(self, index: ast.AST) -> Hashable:
        """Return the step to the elements that a subscript selects."""
        return ("item", self.outcomes.key(index))

    def event(self, **given: Any) -> Event:
        found = Event(len(self.events), **given)
        self.events.append(found)
        return found

    def made(self, name: str, event: Event, key: Hashable | None = None) -> Value:
        """Return a new value that an event makes."""
        value: Value
        if name in self.arrays:
            value = Handle(Memory())
        else:
            value = Number(self.outcomes.fresh() if key is None else key)
        event.makes(value)
        return value

    def handle(self, node: ast.expr) -> Handle | None:
        """Return the array or view that an expression evaluates to, None for other values."""
        match node:
            case ast.Name(id=name):
                found = self.frame.get(name)
                return found if isinstance(found, Handle) else None
            case ast.Subscript(base, index):
                if any(map(self.is_array, leaves(index))):
                    return None
                handle = self.handle(base)
                return None if handle is None else handle.view(self.step(index))
            case ast.Attribute(base, name):
                handle = None if name in SHAPE else self.handle(base)
                return None if handle is None else handle.view(("attribute", name))
            case ast.Call(_, given, named):
                if method := method_of(node):
                    (base, name), more = method, given
                    is_view = name not in NEW_METHODS
                elif given:
                    base, *more = given
                    name = module_call(node)[1]
                    is_view = bool(name) and shows(name, node)
                else:
                    return None
                handle = self.handle(base) if is_view else None
                if handle is None:
                    return None
                keys = map(self.outcomes.key, [*more, *(k.value for k in named)])
                return handle.view((name, *keys))
        return None

    # -- statements ---------------------------------------------------------------------------

    def block(self, body: list[ast.stmt]) -> str:
        """Process a block; return "break" or "return" if it is left early, else ""."""
        for statement in body:
            way = self.statement(statement)
            if way:
                return way
        return ""

    def statement(self, node: ast.stmt) -> str:
        match node:
            case ast.If():
                return self.branch(node)
            case ast.For() | ast.While():
                return self.loop(node)
            case ast.Break():
                return "break"
            case ast.Return(value):
                self.returned = results_of(value)
                return "return"
            case ast.Raise():
                raise AbandonedError
        self.simple(node)
        return ""

    def branch(self, node: ast.If) -> str:
        """Process one side of a branch; return how it is left, as `block` does."""
        if self.is_room(node):
            return ""
        if _ends(node.body, ast.Raise) and not node.orelse:
            return ""
        if self.cotangents.skips_zeros(node):
            return self.block(node.body)
        self.outcomes.wish = self.leaving if _ends(node.body, ast.Break) else None
        sides = {side for side in (True, False) if (id(node), side) in self.checked.passed}
        if _ends(node.body, ast.Raise):
            self.outcomes.wish, sides = False, {False}  # a path with an error ends there
        elif _ends(node.orelse, ast.Raise):
            self.outcomes.wish, sides = True, {True}
        if self.outcomes.wish is None:
            self.outcomes.wish = min(sides) if len(sides) == 1 else self.choices.side(node)
        side = self.outcomes.truth(node, node.test)
        self.outcomes.wish = None
        self.choices.taken |= {(id(node), s) for s in (True, False) if s == side or s not in sides}
        if sides and side not in sides:
            raise AbandonedError
        return self.block(node.body if side else node.orelse)

    def is_of_tape(self, node: ast.AST) -> bool:
        """Whether code uses the tape."""
        return mentions(node)

    def is_room(self, node: ast.If) -> bool:
        """Whether a branch enlarges the tape."""
        if self.is_of_tape(node.test):
            return True
        return any(n.id in self.facts.needed for n in names_in(node.test))

    def is_done(self, name: str) -> bool:
        """Whether a value was made before and is recomputed."""
        return name in self.frame.own

    def simple(self, node: ast.stmt) -> None:
        if self.cotangents.is_cotangent(node) or self.is_call(node):
            self.cotangent(node)
        elif self.is_forward:
            match node:
                case ast.Assign() if not self.is_of_tape(node):
                    self.assign(node)
                case ast.AugAssign():
                    self.add(node)
                case ast.Expr(ast.Call() as call):
                    self.effect(call)

    def is_call(self, node: ast.stmt) -> bool:
        """Whether a statement calls the forward or the reverse half of a function."""
        function = called(call_in(node))
        return self.cotangents.is_forward(function) or self.cotangents.is_reverse(function)

    def cotangent(self, node: ast.stmt) -> None:
        """Process a statement of reverse code."""
        raise NotImplementedError

    def assign(self, node: ast.Assign) -> None:
        found: list[tuple[str, Value]] = []
        for target, value in pairs_in(node):
            match target:
                case ast.Name(id=name):
                    if not self.is_done(name):
                        found.append((name, self.value(name, value)))
                case ast.Subscript(base, index):
                    self.store(base, self.step(index), value, True)
                case _:
                    parts = names_of(target)
                    if not all(map(self.is_done, parts)):
                        event = self.event(operands=self.operands(value, parts))
                        self.note_call(event, value, parts)
                        found += [(part, self.made(part, event)) for part in parts]
        for name, made in found:
            self.frame.set(name, made)

    def value(self, target: str, node: ast.expr) -> Value:
        """Return the value that is assigned to a name."""
        match node:
            case ast.Name(id=name) if name in self.frame.names:
                return self.frame.names[name]
            case ast.Constant(constant):
                return Number(self.outcomes.key(node), bool(constant))
        if target in self.arrays:
            handle = self.handle(node)
            if handle is not None and target not in self.facts.zeros:
                return handle
        literal = self.literal(node) if target in self.arrays else None
        if literal is not None:
            return literal
        match node:
            case ast.Subscript(ast.Name(id=base)):
                return self.item(target, node, base)
        event = self.event(operands=self.operands(node, [target]))
        self.note_call(event, node, [target])
        key = self.outcomes.key(node) if _is_plain(node) or self.is_tuple_of_numbers(node) else None
        made = self.made(target, event, key)
        if isinstance(made, Number):
            self.outcomes.formula(made, node)
        return made

    def is_tuple_of_numbers(self, node: ast.expr) -> bool:
        """Whether an expression is a tuple of constants and names of numbers."""
        return isinstance(node, ast.Tuple) and all(
            isinstance(item, ast.Constant) or self.is_number(item) for item in node.elts
        )

    def is_number(self, node: ast.expr) -> bool:
        """Whether an expression is the name of a number."""
        return isinstance(node, ast.Name) and isinstance(self.frame.get(node.id), Number)

    def literal(self, node: ast.expr) -> Handle | None:
        """Return the array of a display or of a number, None for other expressions."""
        if not calls(node, _LITERALS):
            return None
        given = node.args[0]
        if not self.is_number(given) and not isinstance(given, (ast.List, ast.Tuple)):
            return None
        handle = Handle(Memory())
        self.event().makes(handle)
        for place, element in _elements(given, ()):
            if is_in(element, self.frame.names):
                value = self.frame.names[element.id]
                index: list[ast.expr] = [ast.Constant(k) for k in place]
                step = self.step(index[0] if len(index) == 1 else ast.Tuple(index, ast.Load()))
                found = {element.id: Operand(value, 1, 1)}
                self.event(operands=found, stored=handle.view(step), is_lost=False)
        return handle

    def item(self, target: str, node: ast.Subscript, base: str) -> Value:
        """Return the value of an element of an array or of an item of a tuple."""
        handle = self.frame.get(base)
        if self.cotangents.of(target) and not self.cotangents.of(base):
            return Handle(Memory()) if target in self.arrays else Number(self.outcomes.fresh())
        event = self.event()
        if isinstance(handle, Handle) and target not in self.facts.flat:
            if any(map(self.is_array, leaves(node.slice))):
                event.operands[base] = Operand(handle, 1)
            else:
                event.operands[base] = Operand(handle.view(self.step(node.slice)), 1, 1)
        return self.made(target, event)

    def is_array(self, node: ast.expr) -> bool:
        """Whether an expression is an array; one from outside has no handle."""
        return is_in(node, self.arrays) or self.handle(node) is not None

    def operands(self, node: ast.expr, results: list[str]) -> dict[str, Operand]:
        found: dict[str, Operand] = {}
        is_flat = bool(results) and self.facts.flat.issuperset(results)
        if is_flat and not called(node):  # a function of the user may write to its arguments
            return found
        has_bars = any(map(self.cotangents.of, results))
        for name, count, sign in operands(node):
            value = self.frame.get(name)
            if value is None or name in found:
                continue
            at_least_once: int | None = count
            if count == SOME and has_bars and self.cotangents.of(name):
                at_least_once = None
            found[name] = Operand(value, at_least_once, sign)
        return found

    def note_call(self, event: Event, node: ast.expr, results: list[str]) -> None:
        """Note the function and arguments of a call."""
        if not isinstance(node, ast.Call):
            return
        function, module = called(node), module_call(node)
        if module[0] in ("arrays", "runtime"):
            function = module[1]
        elif not function and not module[0]:
            assert isinstance(node.func, ast.Attribute)  # a method, possibly static
            event.function = node.func.attr
            event.arguments = tuple(self.identity(a) for a in node.args)
            event.instance = self.identity(node.func.value)
        if function:
            event.function = function
            event.arguments = tuple(self.identity(a) for a in node.args)
            has_bars = any(map(self.cotangents.of, results))
            if function in self.facts.differentiated and has_bars:
                for operand in event.operands.values():
                    operand.count = None

    def identity(self, node: ast.expr) -> Hashable:
        """Return a key that identifies an argument of a call."""
        match node:
            case ast.Name(id=name):
                found = self.frame.get(name)
                if isinstance(found, Handle):
                    return (id(found.memory), found.steps)
                return name if found is None else id(found) if found.truth is None else found.key
            case ast.Tuple(items):
                return tuple(map(self.identity, items))
            case ast.Call(func, given):
                return (text_of(func), *map(self.identity, given))
        return self.outcomes.key(node)

    def store(
        self, base: ast.expr, step: Hashable, value: ast.expr, is_lost: bool, sign: int = 1
    ) -> None:
        handle = self.handle(base)
        if handle is None:
            return
        found = {}
        if is_in(value, self.frame.names) and not is_in(base, self.facts.flat):
            found[value.id] = Operand(self.frame.names[value.id], 1, sign)
        self.event(operands=found, stored=handle.view(step), is_lost=is_lost)

    def add(self, node: ast.AugAssign) -> None:
        sign = sign_of(node.op)
        match node.target:
            case ast.Subscript(base, index):
                self.store(base, self.step(index), node.value, False, sign)
            case ast.Name(id=name) if name in self.arrays:
                self.store(node.target, self.step(WHOLE), node.value, False, sign)
            case ast.Name(id=name) if not self.is_of_tape(node.target):
                self.frame.set(name, Number(self.outcomes.fresh()))

    def effect(self, call: ast.Call) -> None:
        """Process a call in an expression statement."""
        module = module_call(call)
        if module[0] == "arrays" and module[1].startswith("assign_"):
            self.store(call.args[0], self.step(WHOLE), call.args[1], True)
        elif called(call):
            event = self.event(operands=self.operands(call, []))
            self.note_call(event, call, [])

    # -- loops --------------------------------------------------------------------------------

    def loop(self, node: ast.For | ast.While) -> str:
        turned = self.checked.turnings.get(id(node))
        if turned is not None:
            assert isinstance(node, ast.For)
            return "" if self.is_forward else self.reverse_loop(node, turned)
        if not self.is_forward:
            return self.again(node)
        outer = self.frame
        going = names_of_loop(node) & outer.names.keys()
        counted = counters(node)
        frames: list[Frame] = []
        outer.turns[id(node)] = frames
        outer.begun[id(node)] = []
        limit = MOST_TURNS
        test = node.test if isinstance(node, ast.While) else None
        if isinstance(node, ast.For):
            key = self.outcomes.key(node.iter)
            limit = self.trips.setdefault(key, self.choices.turns())
        last = self.choices.last(limit if test is None else limit - 1)
        leaving = self.leaving
        current = outer.names
        way, turn = "", 0
        while turn < limit + (test is not None):
            if test is not None and turn == limit:
                raise AbandonedError
            self.leaving = turn >= last
            frame = self.frame = Frame(dict(current), outer)
            outer.begun[id(node)].append(frame)
            start = frame.names
            frame.names = dict(start)
            for name in targets(node):
                frame.names[name] = start[name] = Number(self.outcomes.fresh())
            if test is not None and not self.outcomes.truth(node, test):
                break
            way = self.block(node.body)
            current = {**outer.names, **{name: frame.names[name] for name in going}}
            if not counted or counted & frame.own:
                frames.append(frame)
            frame.names.update({name: start[name] for name in going})
            turn += 1
            if way:
                break
        self.frame, self.leaving = outer, leaving
        for name in going:
            outer.names[name] = current[name]
        return way if way == "return" else ""

    def again(self, node: ast.For | ast.While) -> str:
        """Process the code for cotangents in a loop of the forward code."""
        if self.cotangents.is_cotangent(node):
            outer = self.frame
            for frame in outer.begun[id(node)]:
                self.frame = frame
                self.block(node.body)
            self.frame = outer
        return ""

    def reverse_loop(self, node: ast.For, turned: Any) -> str:
        outer = self.frame
        frames = outer.turns.get(id(turned.node))
        if frames is None:
            raise self.wrong("a loop stands before the one that it turns round", node)
        for frame in reversed(frames):
            self.frame = frame
            self.block(node.body)
            outer.names.update({n: frame.names[n] for n in frame.carried if n in outer.names})
        self.frame = outer
        return ""


def _ends(body: list[ast.stmt], kind: type[ast.stmt]) -> bool:
    """Whether the last statement of a block is of a kind."""
    return bool(body) and isinstance(body[-1], kind)


def _elements(node: ast.expr, place: tuple[int, ...]) -> Iterator[tuple[tuple[int, ...], ast.expr]]:
    if isinstance(node, (ast.List, ast.Tuple)):
        for k, item in enumerate(node.elts):
            yield from _elements(item, (*place, k))
    else:
        yield place, node


WHOLE = ast.Slice(None, None, None)
_LITERALS = ("np", "array"), ("np", "asarray")


def _is_plain(node: ast.expr) -> bool:
    """Whether an expression contains only arithmetic on names and constants."""
    return isinstance(node, (ast.BinOp, ast.UnaryOp, ast.Constant)) and not any(
        isinstance(n, (ast.Call, ast.Subscript, ast.Attribute)) for n in nodes_of(node)
    )
