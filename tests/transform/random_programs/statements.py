"""Statements about numbers, and control flow."""

import re

from .array_expressions import ArrayExpressions
from .scope import group, indented


class Statements(ArrayExpressions):
    """Writes statements; every method returns lines and puts what they define into the scope."""

    def block(self, scope, most, loop=False):
        lines = self.statement(scope, loop)
        for _ in range(self.choose(most)):
            if self.left > 0:
                lines += self.statement(scope, loop)
        return lines

    def nested(self, scope, most, loop=False, trips=1):
        """The lines of a block within one, which a loop runs so many times."""
        outside, self.trips = self.trips, self.trips * max(trips, 1)
        lines = self.block(scope, most, loop)
        self.trips = outside
        return indented(lines)

    def statement(self, scope, loop):
        free, several = scope.free(), len(scope.free()) > 1
        counts = [name for name in scope.ints if name not in scope.kept]
        own = [name for name in free + counts if name in scope.own]
        deeper = self.left > 0 and self.trips <= 16
        self.left -= 1
        kind = self.weighted(
            nothing=1,
            new=2,
            assign=3 * bool(free),
            augment=3 * bool(free),
            integer=1,
            renumber=bool(counts),
            retype=bool(own),
            pair=1,
            unpack=several,
            chain=several,
            if_=4 * (self.left > 0),
            for_=6 * deeper,
            while_=2 * deeper,
            leave=2 * loop,
            return_early=self.early_return(scope),
            array_statement=12,
            idiom=11 * deeper,
            call_statement=7 * bool(self.callable_helpers(*[h.result for h in self.helpers])),
        )
        if kind in ("if_", "for_", "while_"):
            return getattr(self, kind)(scope, loop)
        return getattr(self, kind)(scope)

    def nothing(self, scope):
        return []

    def new(self, scope):
        text = self.small(scope)
        name = self.name("u")
        start = self.pick([text, text, text, "0.0", "0", "1"])
        scope.floats.append(name)
        scope.own.add(name)
        return [f"{name} = {start}"]

    def assign(self, scope):
        name = self.pick(scope.free())
        if self.chance(1, 12):
            return [f"{name} = {self.pick(['0', '1', *scope.ints])}"]
        return [f"{name} = {self.small(scope)}"]

    def augment(self, scope):
        name = self.pick(scope.free())
        sign = self.pick(["+=", "+=", "-=", "*=", "/="])
        if sign in ("+=", "-="):
            return [f"{name} {sign} {self.small(scope)}"]
        return [f"{name} {sign} 1.2 + 0.4 * np.sin({self.number(scope)})"]

    def integer(self, scope):
        if self.chance(1, 3):
            value = f"int(2.0 + 1.9 * np.sin({self.number(scope, 1)}))"
        elif scope.ints and self.chance(1, 2):
            value = f"({self.pick(scope.ints)} * 2 + {self.choose(3)}) % 4"
        else:
            value = str(self.choose(4))
        name = self.name("k")
        scope.ints[name] = (0, 3)
        scope.own.add(name)
        return [f"{name} = {value}"]

    def renumber(self, scope):
        name = self.pick(name for name in scope.ints if name not in scope.kept)
        least, greatest = scope.ints[name]
        value = f"({name} + {1 + self.choose(3)}) % {max(greatest, 0) + 1}"
        return [f"{name} = {value if greatest >= 0 else least}"]

    def retype(self, scope):
        """A name that was a float becomes an integer, or the other way round."""
        name = self.pick(
            name for name in [*scope.floats, *scope.ints] if name in scope.own - scope.kept
        )
        if name in scope.ints:
            text = f"{name} = {name} * {group(self.small(scope))}"
            del scope.ints[name]
            scope.floats.append(name)
            return [text]
        scope.floats.remove(name)
        scope.ints[name] = (0, 3)
        return [f"{name} = {self.choose(4)}"]

    def pair(self, scope):
        first, second = self.small(scope), self.small(scope)
        name = self.name("t")
        scope.tuples[name] = ("float", "float")
        return [f"{name} = ({first}, {second})"]

    def two_free(self, scope):
        first = self.pick(scope.free())
        return first, self.pick(name for name in scope.free() if name != first)

    def unpack(self, scope):
        first, second = self.two_free(scope)
        pairs = [name for name, kinds in scope.tuples.items() if kinds == ("float", "float")]
        if pairs and self.chance(1, 2):
            return [f"{first}, {second} = {self.pick(pairs)}"]
        if self.chance(1, 2):
            return [f"{first}, {second} = {self.small(scope)}, {self.small(scope)}"]
        return [f"{first}, {second} = {second}, {first}"]

    def chain(self, scope):
        names = scope.free()
        first = self.element(scope) if scope.vectors and self.chance(1, 2) else self.pick(names)
        return [f"{first} = {self.pick(names)} = {self.small(scope)}"]

    # results

    def early_return(self, scope):
        """Whether the function's result can be written here."""
        return self.result_of(scope, self.returns, test=True)

    def result_of(self, scope, kind, test=False):
        """An expression of the kind of a result; with `test`, whether there is one."""
        if kind is None:
            return True if test else ""
        if kind == "float":
            return True if test else self.number(scope)
        if kind[0] == "int":
            return True if test else str(kind[1] + self.choose(kind[2] - kind[1] + 1))
        if kind[0] == "vector":
            return True if test else self.vector(scope, kind[1])
        if kind[0] == "matrix":
            same = [name for name, shape in scope.matrices.items() if shape == kind[1:]]
            if test:
                return True
            return self.pick(same) if same else self.matrix(scope, *kind[1:])
        if kind[0] == "tuple":
            if test:
                return True
            items = [self.result_of(scope, item) for item in kind[1]]
            # an integer here and a float there would be two types
            items = [f"{group(t)} + 0.0" if k == "float" else t for t, k in zip(items, kind[1])]
            return f"({', '.join(items)})"
        if test:
            return True
        return f"State({group(self.number(scope))} + 0.0, {self.vector(scope, kind[1])})"

    def return_early(self, scope):
        if self.trips > 1:
            self.note("early return in a loop")
        text = f"return {self.result_of(scope, self.returns)}".strip()
        return [f"if {self.condition(scope)}:", f"    {text}"]

    # control flow

    def if_(self, scope, loop):
        lines = [f"if {self.condition(scope)}:", *self.nested(scope.inner(), 2, loop)]
        if self.chance(1, 4):
            lines += [f"elif {self.condition(scope)}:", *self.nested(scope.inner(), 2, loop)]
        if self.chance(1, 2):
            lines += ["else:", *self.nested(scope.inner(), 2, loop)]
        return lines

    def leave(self, scope):
        lines = [f"if {self.condition(scope)}:"]
        if self.chance(1, 3):
            lines += self.nested(scope.inner(), 1, False, 100)
        return [*lines, "    " + self.pick(["continue", "break"])]

    def for_(self, scope, loop):
        inner = scope.inner()
        before, header, count = self.header(scope, inner)
        body = self.nested(inner, 3, True, count)
        if re.match(r"for (\w+) in", header) and self.chance(1, 10):
            # the name of a loop may be assigned in its body, which does not change the trips
            name = re.match(r"for (\w+) in", header)[1]
            if name in inner.ints:
                body.append(f"    {name} = ({name} + 2) % 3")
        return [*before, header, *body]

    def turns(self, inner):
        """The head of a loop of a few turns."""
        i = self.name("i")
        count = 2 + self.choose(2)
        inner.ints[i] = (0, count - 1)
        return f"for {i} in range({count}):"

    def extra(self, scope):
        """Perhaps one statement more."""
        if self.left > 0 and self.chance(1, 3):
            self.left -= 1
            return self.statement(scope, False)
        return []

    def header(self, scope, inner):
        """Lines before a loop, its first line, and how often it runs at most."""
        counts = [name for name, (_, high) in scope.ints.items() if 0 <= high <= 5]
        some = bool(scope.vectors)
        kind = self.weighted(
            count=2,
            start=1,
            down=1,
            step=1,
            number=1,
            turn=1,
            int=2 * bool(counts),
            size=3 * some,
            size_down=some,
            values=2 * some,
            enumerate=some,
            zip=some,
            rows=bool(scope.matrices),
        )
        if kind in ("values", "enumerate", "zip", "rows"):
            return self.values_header(scope, inner, kind)
        before, i = [], self.name("i")
        if kind == "count":
            count = self.pick([2, 3, 1, 4, 0])
            text, bounds = str(count), (0, count - 1)
        elif kind == "start":
            start, count = self.choose(3), self.pick([2, 3, 1, 0])
            text, bounds = f"{start}, {start + count}", (start, start + count - 1)
        elif kind == "down":
            count = self.pick([3, 2, 4])
            text, bounds = f"{count - 1}, -1, -1", (0, count - 1)
        elif kind == "step":
            text, bounds, count = self.pick(
                [
                    ("0, 5, 2", (0, 4), 3),
                    ("4, 0, -2", (2, 4), 2),
                    ("1, 6, 3", (1, 4), 2),
                    ("2, 2, -1", (2, 2), 0),
                    ("0, 3, -1", (0, 2), 0),
                    ("-1, -4, -1", (-3, -1), 3),
                ]
            )
        elif kind == "number":
            text = f"int(1.0 + 1.9 * np.cos({self.number(scope, 1)}))"
            bounds, count = (0, 1), 2
        elif kind == "turn":
            d = self.name("d")
            before = [f"{d} = 1 if {self.condition(scope)} else -1"]
            text, bounds, count = f"1, 1 + 3 * {d}, {d}", (-1, 3), 3
            inner.ints[d] = (-1, 1)
            inner.kept.add(d)
        elif kind == "int":
            k = self.pick(counts)
            text, bounds, count = k, (0, max(scope.ints[k][1] - 1, 0)), scope.ints[k][1]
        else:
            name = self.pick(scope.vectors)
            count = scope.vectors[name]
            size, bounds = self.pick([f"len({name})", f"{name}.shape[0]"]), (0, count - 1)
            text = size if kind == "size" else f"{size} - 1, -1, -1"
        inner.ints[i] = (bounds[0], max(bounds))
        inner.own.add(i)
        return before, f"for {i} in range({text}):", count

    def values_header(self, scope, inner, kind):
        x = self.name("e")
        if kind == "rows":
            name = self.pick(scope.matrices)
            rows, columns = scope.matrices[name]
            inner.vectors[x] = columns
            self.note("rows of a matrix in a loop")
            if self.chance(1, 3):
                i = self.name("i")
                inner.ints[i] = (0, rows - 1)
                return [], f"for {i}, {x} in enumerate({name}):", rows
            return [], f"for {x} in {name}:", rows
        name = self.pick(scope.vectors)
        count = scope.vectors[name]
        inner.floats.append(x)
        if kind == "values":
            what = self.pick([name, name, f"{name}[::-1]", f"{name}[1:]"])
            return [], f"for {x} in {what}:", count
        if kind == "enumerate":
            i = self.name("i")
            inner.ints[i] = (0, count - 1)
            return [], f"for {i}, {x} in enumerate({name}):", count
        other, y = self.pick(scope.vectors), self.name("e")
        inner.floats.append(y)
        return [], f"for {x}, {y} in zip({name}, {other}):", min(count, scope.vectors[other])

    def while_(self, scope, loop):
        inner = scope.inner()
        if self.chance(1, 3):
            name = self.name("u")
            inner.floats.append(name)
            inner.kept.add(name)
            start, step = self.number(scope), self.number(scope)
            test = f"{name} < 1.2"
            calls = self.callable_helpers("float")
            if calls and self.chance(1, 2):
                self.note("call in a while test")
                test += f" + 0.3 * np.sin({self.call(scope, self.pick(calls))})"
            body = self.nested(inner, 3, True, 4)
            scope.floats.append(name)
            return [
                f"{name} = 0.5 * np.sin({start})",
                f"while {test}:",
                f"    {name} += 0.7 + 0.2 * np.sin({step})",
                *body,
            ]
        name, most = self.name("k"), self.pick([2, 3, 4])
        inner.ints[name] = (1, most)
        inner.kept.add(name)
        before = set(self.shapes)
        self.shapes.discard("call in a condition")
        test = self.condition(scope, 0)
        if "call in a condition" in self.shapes:
            self.note("call in a while test")
        self.shapes |= before
        if self.chance(1, 3):
            first = ["while True:", f"    {name} += 1"]
            first += [f"    if {name} > {most} or {test}:", "        break"]
        else:
            first = [f"while {name} < {most} and {test}:", f"    {name} += 1"]
        body = self.nested(inner, 3, True, most)
        scope.ints[name] = (0, most + 1)
        return [f"{name} = 0", *first, *body]

    # calls as statements

    def call_statement(self, scope):
        """A call whose result is ignored, named, taken apart, or put where something stood."""
        helper = self.pick(self.callable_helpers(*[h.result for h in self.helpers]))
        text, kind = self.call(scope, helper), helper.result
        if kind is None or self.chance(1, 8):
            self.note("result of a call ignored" if kind is not None else "call for its writes")
            return [text]
        if kind == "complex":
            self.note("complex result of a call")
        if kind == "float":
            free = scope.free()
            if scope.vectors and self.chance(1, 3):
                self.note("x[i] += h(x)")
                return [f"{self.element(scope)} {self.pick(['=', '+=', '-='])} np.sin({text})"]
            if free and self.chance(1, 2):
                return [f"{self.pick(free)} {self.pick(['=', '=', '+='])} np.sin({text})"]
        if kind[0] == "vector":
            same = [n for n in scope.of_length(kind[1]) if n in scope.movable()]
            if same and self.chance(1, 3):
                self.note("array result of a call put into an array")
                return [f"{self.pick(same)}[:] = {text}"]
            if same and self.chance(1, 2):
                self.note("variable rebound to the array of a call")
                return [f"{self.pick(same)} = {text}"]
        if kind[0] == "tuple" and self.chance(2, 3):
            self.note("tuple of a call taken apart")
            names = [self.name("r") for _ in kind[1]]
            for name, item in zip(names, kind[1], strict=True):
                scope.add(name, item)
            return [f"{', '.join(names)} = {text}"]
        name = self.name("r")
        scope.add(name, kind)
        return [f"{name} = {text}"]
