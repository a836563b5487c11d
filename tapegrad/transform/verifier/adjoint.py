"""The reverse code computes the cotangents that follow from what the forward code does.

Some ways through the code are drawn (`walk`). On each the cotangents are computed twice: as the
statements of the reverse code say, and as they follow from the operations of the forward code, from
the last to the first (`events`). Derivatives are random maps (`linear`): the one from the cotangent
of a result to that of an operand is the same on both sides. What is missing, done twice, done in
another order or not cleared leads to other cotangents of the arguments.
"""

from __future__ import annotations

import ast
import re
from typing import Any

from tapegrad.transform.verifier.code import called, leaves, module_call, names_in, paired
from tapegrad.transform.verifier.cotangents import REVERSE, TAPE
from tapegrad.transform.verifier.events import (
    Contents,
    Event,
    Expected,
    Handle,
    Memory,
    Number,
    Operand,
    Value,
    joined,
)
from tapegrad.transform.verifier.linear import ONE, ZERO, Map, negative, product, total
from tapegrad.transform.verifier.memory import SHAPE, SHAPE_CALLS, added_to
from tapegrad.transform.verifier.walk import AbandonedError, Choices, Static, Walk

_SEED = re.compile(r"g_seed\d*_\d+$")
_PART = re.compile(r"_part_\d+$")
_SUMS = ("sum", "float32", "float64", "float", "sum_numbered")
_NO_SOURCES = SHAPE_CALLS | {"places"}
LEAST_WALKS, MOST_WALKS = 4, 10


class Helper:
    """What is computed from the cotangents of the results of an operation for those of operands."""

    def __init__(self, event: Event, value: Map) -> None:
        self.event, self.value = event, value


Source = tuple[
    ast.expr, str, "Map | Helper", bool
]  # an expression, its name, its value, if it is a part


class Adjoint(Walk):
    """The comparison on one way."""

    def __init__(self, checked: Any, choices: Choices) -> None:
        super().__init__(checked, choices)
        self.numbers: dict[str, Map | Helper] = {}
        self.contents = Contents(self.maps)
        self.expected = Expected(self.maps)
        self.seeds: list[tuple[Value | str, Map]] = []
        self.returned: list[ast.expr] = []
        self.reversed: set[int] = set()
        self.frames_of: dict[int, Any] = {}
        self.inputs: list[tuple[str, str]] = []
        self.slopes = {n for n in self.bars if n.endswith("_slope")}
        self.scales = {n.removesuffix("_slope") + self.suffix for n in self.slopes}

    # -- the whole ----------------------------------------------------------------------------

    def run(self) -> None:
        """Compare the cotangents of the arguments."""
        codes = self.checked.codes
        names = self.frame.names
        for code in codes:
            self.code = code
            for param in code.parameters:
                if param in TAPE or param in names:
                    continue
                if param not in self.bars:
                    names[param] = Handle(Memory()) if param in self.arrays else Number(param)
                elif _SEED.match(param):
                    self.numbers[param] = self.maps.of("seed", param)
        for name in self.facts.outside:
            names[name] = Handle(Memory())
        results: list[str] = []
        for place, code in enumerate(codes):
            self.code = code
            for param in code.parameters:
                stem = self.stem(param)
                if stem and param not in names:
                    names[param] = Handle(Memory())
                    self.inputs.append((param, stem))
            self.block(code.body)
            if place + 1 < len(codes):
                results = [n.id for n in self.returned if isinstance(n, ast.Name)]
        self.start(results)
        self.is_forward = False
        self.block(self.code.body)
        self.finish()

    def start(self, results: list[str]) -> None:
        """Give the arrays that a caller knows their cotangents."""
        if len(self.checked.codes) == 1:
            return
        for name in [*(n for n, _ in self.inputs), *results]:
            stem = self.stem(name)
            handle, array = self.frame.get(name), self.frame.get(stem)
            if stem and isinstance(handle, Handle):
                seed = self.maps.of("array", name)
                self.contents.add(handle, seed)
                if isinstance(array, Handle):
                    self.seeds.append((array, seed))

    def finish(self) -> None:
        names = self.frame.names
        for value, seed in self.seeds:
            self.expected.add(names[value] if isinstance(value, str) else value, seed)
        self.expected.run(self.events)
        end = self.code.body[-1]
        given = [n for n, _ in self.inputs]
        for node in self.returned:
            given += [n.id for n in names_in(node) if n.id in self.bars]
        for name in dict.fromkeys(given):
            stem = self.stem(name)
            value = names.get(stem)
            if value is None or (isinstance(value, Number) and name in names):
                continue
            if isinstance(value, Number):
                found = self.number(name, end)
                found = found.value if isinstance(found, Helper) else found
            else:
                handle = names[name]
                if not isinstance(handle, Handle) or value.event is not None:
                    continue
                found = self.contents.read(handle)
            if found != self.expected.get(value):
                raise self.wrong(f"{name} is not what follows from the forward code", end)

    def stem(self, name: str) -> str:
        """Return the name that a cotangent belongs to; nothing if it is another value."""
        if name in self.slopes:
            return name.removesuffix("_slope")
        stem = name.removesuffix(self.suffix)
        return stem if stem != name and stem in self.facts.primal else ""

    # -- cotangents that are read -------------------------------------------------------------

    def number(self, name: str, node: ast.AST) -> Map | Helper:
        found = self.numbers.get(name)
        if found is None:
            raise self.wrong(f"{name} is read where it has no value", node)
        return found

    def sources(self, node: ast.expr) -> list[Source]:
        """Return the cotangents that an expression reads."""
        found = self.source(node)
        if found is not None:
            return [found]
        if isinstance(node, ast.Attribute) and node.attr in SHAPE:
            return []
        if isinstance(node, ast.Call):
            module = module_call(node)
            if module is not None and module[1] in _NO_SOURCES:
                return []
        return [
            source
            for child in ast.iter_child_nodes(node)
            if isinstance(child, ast.expr)
            for source in self.sources(child)
        ]

    def source(self, node: ast.expr) -> Source | None:
        inner: ast.expr = node
        while not isinstance(inner, ast.Name):
            if isinstance(inner, ast.Subscript):
                inner = inner.value
            elif (
                isinstance(inner, ast.Call)
                and isinstance(inner.func, ast.Attribute)
                and inner.func.attr in ("copy", "reshape", "ravel", "flatten", "transpose")
            ):
                inner = inner.func.value
            elif isinstance(inner, ast.Attribute) and inner.attr == "T":
                inner = inner.value
            else:
                return None
        name = inner.id
        if name not in self.bars:
            return None
        handle = self.frame.get(name)
        if isinstance(handle, Handle):
            while isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
                node = node.func.value
            shown = self.handle(node)
            if shown is None:
                return (node, name, self.contents.read(handle), False)
            return (node, name, self.contents.read(shown), not isinstance(node, ast.Name))
        return (node, name, self.number(name, node), False)

    def sign(self, node: ast.expr) -> int:
        """Return 1 or -1 if an expression is a cotangent or minus a cotangent, else 0."""
        if self.source(node) is not None:
            return 1
        if isinstance(node, ast.UnaryOp):
            found = self.sign(node.operand)
            return -found if isinstance(node.op, ast.USub) else found
        if isinstance(node, ast.Call) and node.args:
            module = module_call(node)
            if (called(node) or (module or ("", ""))[1]) in _SUMS:
                return self.sign(node.args[-1])
        return 0

    def gain(self, node: ast.expr, target: str, statement: ast.stmt) -> Map:
        """Return what an expression adds to the cotangent of a name."""
        if isinstance(node, ast.UnaryOp) and isinstance(node.operand, ast.BinOp):
            inner = node.operand  # the scale of a recurrence stands before the sign
            if isinstance(inner.left, ast.Name) and inner.left.id in self.scales:
                node = ast.BinOp(inner.left, inner.op, ast.UnaryOp(node.op, inner.right))
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mult):
            left = node.left
            if isinstance(left, ast.Name) and left.id in self.scales and self.sources(node.right):
                scale = self.number(left.id, statement)
                assert not isinstance(scale, Helper)
                return product(self.gain(node.right, target, statement), scale)
        found = self.sources(node)
        if not found:
            return self.constant(node, target, statement)
        sign = self.sign(node)
        if len(found) == 1:
            _, name, value, is_part = found[0]
            stem = self.stem(name)
            if _SEED.match(name) and sign > 0 and not isinstance(value, Helper):
                self.seeds.append((target, value))
                return value
            if isinstance(value, Helper):
                return self.edge(value.event, [(0, value.value)], target, sign, statement)
            is_copy = self.facts.is_copy(stem, target)
            if (is_copy and sign) or is_part or not stem:
                if not sign:
                    raise self.wrong("a factor where the cotangent goes on as it is", statement)
                return value if sign > 0 else negative(value)
        events = []
        values: list[tuple[int, Map]] = []
        for _, name, value, is_part in found:
            made = self.frame.get(self.stem(name))
            if made is None or made.event is None or is_part or isinstance(value, Helper):
                raise self.wrong(f"{name} is no cotangent of what an operation makes", statement)
            events.append(made.event)
            values.append((made.place, value))
        if any(event is not events[0] for event in events):
            raise self.wrong("cotangents of the results of several operations in one", statement)
        return self.edge(events[0], values, target, sign, statement)

    def constant(self, node: ast.expr, target: str, statement: ast.stmt) -> Map:
        text = ast.unparse(node)
        if text in ("0.0", "-0.0"):
            return ZERO
        if text == "1.0":
            if self.frame.outer is not None:
                return ONE  # of a recurrence, whose slope is computed
            self.seeds.append((target, ONE))
            return ONE
        raise self.wrong(f"it adds what is no cotangent to that of {target}", statement)

    def edge(
        self,
        event: Event,
        values: list[tuple[int, Map]],
        target: str,
        sign: int,
        statement: ast.stmt,
    ) -> Map:
        """Return what goes from the cotangents of results to that of an operand."""
        operand = event.operands.get(target)
        if operand is None:
            what = f"{target} is no operand of what made the value whose cotangent goes to it"
            raise self.wrong(what, statement)
        event.taken.update(place for place, _ in values)
        count = event.used.get(target, 0)
        event.used[target] = count + 1
        found = ZERO
        for place, value in values:
            if operand.sign:
                if not sign:
                    raise self.wrong("a factor where the cotangent goes on as it is", statement)
                change = value if sign > 0 else negative(value)
            else:
                change = product(self.maps.of(event.number, place, target, count), value)
            found = total(found, change)
        return found

    # -- statements ---------------------------------------------------------------------------

    def cotangent(self, node: ast.stmt) -> None:
        value = getattr(node, "value", None)
        function = called(value) or ""
        if isinstance(value, ast.Call) and self.cotangents.is_forward(function):
            if self.is_forward:
                self.forward_call(node, value, function)
        elif self.is_forward:
            if isinstance(node, ast.Assign):
                self.make_shadows(node)
        elif isinstance(value, ast.Call) and self.cotangents.is_reverse(function):
            self.reverse_call(node, value, function)
        elif isinstance(node, ast.Expr):
            if isinstance(value, ast.Call):
                self.added(node, value)
        elif isinstance(node, ast.Assign):
            self.assign_cotangents(node)
        elif isinstance(node, ast.AugAssign):
            self.add_cotangent(node)

    def assign_cotangents(self, node: ast.Assign) -> None:
        target, value = node.targets[0], node.value
        if isinstance(target, ast.Tuple):
            if isinstance(value, ast.Call) and any(_is_tape(n) for n in names_in(value)):
                return  # taken from the tape: known
            if isinstance(value, ast.Tuple):
                self.assign_together(node, target.elts, value.elts)
                return
            self.help(node, [n.id for n in leaves(target) if isinstance(n, ast.Name)], value)
        elif isinstance(target, ast.Subscript):
            handle = self.handle(target)
            if handle is None:
                raise self.wrong("a store that no pass knows", node)
            if ast.unparse(value) != "0.0":
                raise self.wrong("a cotangent is overwritten by something else than zero", node)
            self.contents.clear(handle)
        elif isinstance(target, ast.Name):
            self.assign_together(node, [target], [value])

    def assign_together(
        self, node: ast.Assign, targets: list[ast.expr], values: list[ast.expr]
    ) -> None:
        numbers: list[tuple[str, Map | Helper]] = []
        self.make_shadows(node)
        for target, value in zip(targets, values, strict=True):
            assert isinstance(target, ast.Name)
            name = target.id
            if name not in self.bars or isinstance(self.frame.get(name), Handle):
                continue
            if isinstance(value, ast.Subscript) and _is_in(value.value, {"tape"}):
                continue
            if self.stem(name):
                numbers.append((name, self.gain(value, self.stem(name), node)))
            else:
                self.help(node, [name], value)
        self.numbers.update(numbers)

    def make_shadows(self, node: ast.Assign) -> None:
        """Go through what makes arrays of cotangents, and the arrays that go with them."""
        found: list[tuple[str, Value]] = []
        for target, value in paired(node.targets[0], node.value):
            if not isinstance(target, ast.Name) or target.id in self.frame.own:
                continue
            if target.id not in self.bars:
                if self.is_forward:
                    found.append((target.id, self.value(target.id, value, node)))
                continue
            handle = self.shadow(target.id, value)
            if handle is not None:
                found.append((target.id, handle))
        for name, made in found:
            self.frame.names[name] = made
            self.frame.own.add(name)

    def shadow(self, name: str, value: ast.expr) -> Handle | None:
        """Return the array of cotangents that an expression is, None for a number."""
        stem = self.stem(name)
        if not stem:
            return None
        found = module_call(value) if isinstance(value, ast.Call) else None
        if found is not None and found[1] in ("zeros", "zeros_like") and found[0] == "np":
            return Handle(Memory())
        return self.handle(value) if stem in self.arrays else None

    def help(self, node: ast.stmt, names: list[str], value: ast.expr) -> None:
        """Note what is computed for several operands."""
        if isinstance(value, ast.Call) and module_call(value) == ("arrays", "taken"):
            base, places, clear = value.args
            handle = self.handle(base)
            if handle is None or not isinstance(places, ast.Subscript):
                raise self.wrong("a store that no pass knows", node)
            handle = handle.view(self.step(places.slice))
            self.numbers[names[0]] = self.contents.read(handle)
            if ast.unparse(clear) == "True":
                self.contents.clear(handle)
            return
        found = self.sources(value)
        if len(found) == 1 and self.sign(value) > 0 and not isinstance(found[0][2], Helper):
            self.numbers.update(dict.fromkeys(names, found[0][2]))
            return
        event: Event | None = None
        values: dict[int, Map] = {}
        for _, name, given, is_part in found:
            made = self.frame.get(self.stem(name))
            if made is None or made.event is None or is_part or isinstance(given, Helper):
                raise self.wrong(f"{name} is no cotangent of what an operation makes", node)
            if event is not None and event is not made.event:
                raise self.wrong("cotangents of the results of several operations in one", node)
            event = made.event
            values[made.place] = total(values.get(made.place, ZERO), given)
        if event is None:
            raise self.wrong("it is computed from no cotangent", node)
        event.joined = True
        together = [values.get(k, ZERO) for k in range(len(event.results))]
        helper = Helper(event, joined(self.maps, event, together))
        self.numbers.update(dict.fromkeys(names, helper))

    def add_cotangent(self, node: ast.AugAssign) -> None:
        target, value = node.target, node.value
        if isinstance(node.op, ast.Sub):
            value = ast.UnaryOp(ast.USub(), value)
        if isinstance(target, ast.Subscript):
            base: ast.expr = target
            while isinstance(base, ast.Subscript):
                base = base.value
            handle = self.handle(target)
            if handle is None or not isinstance(base, ast.Name):
                raise self.wrong("a store that no pass knows", node)
            self.contents.add(handle, self.gain(value, self.stem(base.id), node))
            return
        assert isinstance(target, ast.Name)
        name = target.id
        if isinstance(node.op, ast.Mult):
            slope = name.removesuffix(self.suffix) + "_slope"
            if not isinstance(value, ast.Name) or value.id != slope:
                raise self.wrong("a product that is no slope", node)
            one, two = self.number(slope, node), self.number(name, node)
            assert not isinstance(one, Helper)
            assert not isinstance(two, Helper)
            self.numbers[name] = product(one, two)
            return
        change = self.gain(value, self.stem(name), node)
        handle = self.frame.get(name)
        if isinstance(handle, Handle):
            self.contents.add(handle, change)
            return
        before = self.number(name, node)
        assert not isinstance(before, Helper)
        self.numbers[name] = total(before, change)

    def added(self, node: ast.Expr, call: ast.Call) -> None:
        """Go through a call that adds to the cotangent of an array."""
        module = module_call(call)
        if module is None or module[0] != "arrays":
            if module is not None and module[1] == "give_tape":
                return
            raise self.wrong("a call that no pass knows", node)
        position = added_to(module)
        first = call.args[position]
        handle = self.handle(first)
        if handle is None or not isinstance(first, ast.Name):
            if isinstance(first, ast.Call):
                return  # cotangents that nobody reads
            raise self.wrong("a call that no pass knows", node)
        whole: ast.expr = call.args[-1]
        if not module[1].startswith("add_"):
            others = [a for k, a in enumerate(call.args) if k != position]
            whole = ast.Call(call.func, others, [])
        self.contents.add(handle, self.gain(whole, self.stem(first.id), node))

    # -- calls --------------------------------------------------------------------------------

    def forward_call(self, node: ast.stmt, call: ast.Call, function: str) -> None:
        assert isinstance(node, ast.Assign)
        found = [n.id for n in leaves(node.targets[0]) if isinstance(n, ast.Name)]
        names = [n for n in found if n not in TAPE]
        if self.frame.own.issuperset(names) and names:
            return
        summary = self.checked.summaries[function]
        event = self.event(operands={})
        self.note_call(event, call, [])
        event.function = function
        for name in names_in(call):
            value = self.frame.get(name.id)
            if value is not None and name.id not in self.bars and name.id not in event.operands:
                event.operands[name.id] = Operand(value, None)
        shadowed: dict[str, Handle | None] = {}
        results = summary.results or ()
        for place, name in enumerate(found):
            if name in self.bars:
                shadowed[self.stem(name)] = None
                kind = results[place] if len(results) == len(found) else None
                for position, of in summary.classes.items():
                    given = call.args[position]
                    if of == kind and isinstance(given, ast.Name) and given.id in self.bars:
                        base = self.frame.get(given.id)
                        array = self.frame.get(self.stem(given.id))
                        if isinstance(base, Handle) and isinstance(array, Handle):
                            step = ("result", event.number, place)
                            self.frame.names[name] = base.view(step)
                            shadowed[self.stem(name)] = array.view(step)
                            break
                else:
                    self.frame.names[name] = Handle(Memory())
                self.frame.own.add(name)
        for name in names:
            if name in self.bars:
                continue
            view = shadowed.get(name)
            if view is not None:
                self.frame.names[name] = view
            else:
                made = Handle(Memory()) if name in shadowed else None
                if made is not None:
                    made.event, made.place = event, len(event.results)
                    event.results.append(made)
                    self.frame.names[name] = made
                else:
                    self.frame.names[name] = self.made(name, event)
            self.frame.own.add(name)
        event.seeds = [self.frame.names[n] for n in shadowed if n in self.frame.names]
        self.frames_of[event.number] = self.frame

    def note_call(self, event: Event, node: ast.expr, results: list[str]) -> None:
        super().note_call(event, node, results)
        self.frames_of[event.number] = self.frame

    def reverse_call(self, node: ast.stmt, call: ast.Call, function: str) -> None:
        params = self.checked.summaries[function].params
        given = [a for a in call.args if not _is_tape(a)]
        primal: list[ast.expr] = []
        shadows: list[ast.expr] = []
        seeds: list[ast.expr] = []
        for param, argument in zip(params, given, strict=False):
            if _SEED.match(param):
                seeds.append(argument)
            elif (
                (isinstance(argument, ast.Name) and argument.id in self.bars)
                or param.endswith(self.suffix)
                or re.search(r"_bar\d*$", param)
            ):
                shadows.append(argument)
            else:
                primal.append(argument)
        event = self.event_of(function, tuple(map(self.identity, primal)))
        if event is None:
            raise self.wrong("the reverse of a call that the forward code does not make", node)
        self.reversed.add(event.number)
        shown = [s.id for s in shadows if isinstance(s, ast.Name)]
        handles = [self.frame.get(n) for n in shown]
        arrays = [self.frame.get(self.stem(n)) for n in shown]
        results = list(event.seeds)  # arrays of the result whose cotangents the callee made
        for value in results:
            for name, other in self.frame.names.items():
                if other is value and name + self.suffix in self.frame.names:
                    handles.append(self.frame.names[name + self.suffix])
                    arrays.append(value)
                    break
        event.passed = [a if isinstance(a, Handle) else Handle(Memory()) for a in arrays]
        event.seeds = []
        maps = []
        for seed in seeds:
            found = self.sources(seed)
            if not found:
                maps.append(ZERO)
                event.seeds.append(None)
                continue
            value = found[0][2]
            stem = self.stem(found[0][1])
            if len(found) != 1 or self.sign(seed) != 1 or isinstance(value, Helper) or not stem:
                raise self.wrong("a cotangent of a call that no pass knows", node)
            maps.append(value)
            event.seeds.append(self.frame.get(stem))
        targets: list[str] = []
        if isinstance(node, ast.Assign):
            found_names = [n.id for n in leaves(node.targets[0]) if isinstance(n, ast.Name)]
            targets = [n for n in found_names if n not in TAPE]
        event.parts = [_PART.sub("", n) for n in targets]
        for stem in event.parts:
            if stem not in event.operands:
                raise self.wrong(f"{stem} is no argument of the call", node)
        parts = self.contents.call(event, handles, maps)
        self.numbers.update(zip(targets, parts, strict=True))

    def event_of(self, function: str, arguments: tuple[Any, ...]) -> Event | None:
        """Return the last call that is not reversed yet."""
        forward = REVERSE.sub(r"_forward\1", function)
        has_forward = self.checked.has_forward(function)
        for event in reversed(self.events):
            if not event.function or event.number in self.reversed:
                continue
            if self.frames_of.get(event.number) is not self.frame:
                continue
            if has_forward:
                if event.function == forward and event.arguments[: len(arguments)] == arguments:
                    return event
            elif event.arguments == arguments[: len(event.arguments)] and not (
                self.cotangents.is_forward(event.function)
            ):
                self.facts.differentiated.add(event.function)
                return event
        return None


def _is_tape(node: ast.expr) -> bool:
    return isinstance(node, ast.Name) and node.id in TAPE


def _is_in(node: ast.expr, names: set[str]) -> bool:
    return isinstance(node, ast.Name) and node.id in names


def compare(checked: Any, differentiated: set[str]) -> None:
    """Go some ways through a function, or through a forward function and its reverse."""
    checked.static = Static(checked, differentiated)
    taken: set[tuple[int, bool]] = set()
    branches = {
        (id(s), side)
        for code in checked.codes
        for s in code.statements
        if isinstance(s, ast.If)
        for side in (True, False)
    }
    done, tries = 0, 0
    while tries < MOST_WALKS and (done < LEAST_WALKS or branches - taken):
        tried = set(taken)
        walk = Adjoint(checked, Choices(tries, tried))
        tries += 1
        try:
            walk.run()
        except AbandonedError:
            continue
        done += 1
        if done >= LEAST_WALKS and taken == tried:
            break
        taken |= tried
    if not done:
        code = checked.codes[0]
        raise code.wrong("no way through it was found", code.body[0])
