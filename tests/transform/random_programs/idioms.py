"""Arrays as real programs use them: several statements that belong together."""

from .scope import group, indented
from .structures import Structures


class Idioms(Structures):
    """Writes the life of an array, in random words."""

    def idiom(self, scope):
        outside, self.trips = self.trips, self.trips * 3
        kind = self.weighted(
            work_array=3,
            double_buffer=3,
            iterate=3,
            accept=3,
            keep_the_best=3,
            sum_then_call=3,
            rows_of_work=2,
            views_across_writes=2,
            history=2,
            records=3,
            shifted_sums=2,
            broadcast=3,
            broadcast_write=3,
            complex_numbers=2,
            complex_array=3,
            list_of_floats=4,
            undefined_not_taken=3,
            array_packed=2 * bool(scope.vectors),
            tuple_to_helper=8 * bool(scope.vectors and self.takers_of_structures()),
            derivative_call=6 * bool(self.differentiable_helpers()),
            list_in_inner_function=2,
            list_to_helper=2,
        )
        self.note(kind.replace("_", " "))
        lines = getattr(self, kind)(scope)
        self.trips = outside
        return lines

    def start(self, scope, name, length):
        """A line that makes an array to begin with, and puts it into the scope."""
        same = scope.of_length(length)
        maker = self.weighted(copy=3 * bool(same), alias=bool(same), fresh=2, zeros=1)
        value = {
            "copy": lambda: f"{self.pick(same)}.copy()",
            "alias": lambda: self.pick(same),
            "fresh": lambda: self.fresh_vector(scope, length),
            "zeros": lambda: f"np.zeros({length})",
        }[maker]()
        scope.vectors[name] = length
        return [f"{name} = {value}"]

    def leaving(self, inner):
        return [f"if {self.condition(inner)}:", "    break"] if self.chance(1, 2) else []

    def work_array(self, scope):
        """A work array that every turn fills anew."""
        size, w, total = self.length, self.name("w"), self.name("u")
        lines = [f"{w} = np.{self.pick(['empty', 'zeros', 'empty'])}({size})", f"{total} = 0.0"]
        inner = scope.inner()
        head = self.turns(inner)
        inner.floats.append(total)
        if self.chance(2, 3):
            body = self.filled(inner, w, size)
        else:
            body = [f"{w}[:] = {self.vector(inner, size)}"]
        inner.vectors[w] = size
        body += self.extra(inner)
        if self.chance(1, 2):
            body.append(f"{w}[{self.index(inner, w, size)}] *= {self.small(inner, 1)}")
        value = f"np.sum({w} * {group(self.vector(inner, size))})"
        calls = self.callable_helpers("float")
        if calls and self.chance(1, 2):
            value = f"np.sin({self.call(inner, self.pick(calls))})"
        body += [f"{total} += {value}", *self.leaving(inner)]
        scope.floats.append(total)
        if lines[0].find("empty") < 0:
            scope.vectors[w] = size
        return [*lines, head, *indented(body)]

    def double_buffer(self, scope):
        size, new, old = self.length, self.name("b"), self.name("b")
        lines = self.start(scope, old, size)
        lines.append(self.pick([f"{new} = np.zeros({size})", f"{new} = np.empty_like({old})"]))
        inner = scope.inner()
        head = self.turns(inner)
        if self.chance(2, 3):
            j = self.name("j")
            near = inner.inner()
            near.ints[j] = (0, size - 1)
            value = f"{old}[{j}] + 0.3 * ({old}[{j} - 1] - {self.small(near, 1)})"
            body = [f"for {j} in range({size}):", f"    {new}[{j}] = np.sin({value})"]
        else:
            body = [f"{new}[:] = np.tanh({self.vector(inner, size)})"]
        inner.vectors[new] = size
        body += self.extra(inner)
        body += [f"{old}, {new} = {new}, {old}", *self.leaving(inner)]
        if "zeros" in lines[-1]:
            scope.vectors[new] = size
        return [*lines, head, *indented(body)]

    def iterate(self, scope):
        """An array that is another one in each turn, until a condition holds."""
        size, x, p = self.length, self.name("x"), self.name("p")
        lines = self.start(scope, x, size)
        inner = scope.inner()
        head = self.turns(inner)
        step = self.pick(["0.3", "RATE", group(self.small(inner, 1))])
        body = [f"{p} = {self.fresh_vector(inner, size)}"]
        inner.vectors[p] = size
        body += self.extra(inner)
        if self.chance(2, 3):
            body.append(f"{x} = {x} {self.pick(['+', '-'])} {step} * {p}")
        else:
            body.append(f"{x} = {self.vector(inner, size)}")
        body += self.leaving(inner)
        return [*lines, head, *indented(body)]

    def accept(self, scope):
        """A step that is taken only if it is good."""
        size, y, new, error = self.length, self.name("y"), self.name("y"), self.name("u")
        lines = self.start(scope, y, size)
        inner = scope.inner()
        head = self.turns(inner)
        turn = head.split()[1]
        body = [f"{new} = {self.vector(inner, size)}"]
        inner.vectors[new] = size
        body += [f"{error} = {self.number(inner)}"]
        inner.floats.append(error)
        body += self.extra(inner)
        value = self.pick([new, new, f"{new}.copy()"])
        body += [f"if {error} {self.pick(['<', '>'])} 0.3:", f"    {y} = {value}"]
        if self.chance(1, 3):
            body += ["    break"]
        elif self.chance(1, 3):
            body += ["else:", f"    {y} = {self.vector(inner, size)}"]
        if self.chance(1, 3):
            lines += [f"{error} = 1.0"]
            head = f"while {error} > 0.05:"
            k = self.name("k")
            lines += [f"{k} = 0"]
            body = [f"{turn} = {k}", *body, f"{k} += 1", f"if {k} > 1:", "    break"]
        return [*lines, head, *indented(body)]

    def keep_the_best(self, scope):
        size = self.length
        best, low, new, value = (self.name(letter) for letter in "bucu")
        lines = self.start(scope, best, size)
        lines.append(f"{low} = {self.pick(['10.0', self.number(scope)])}")
        inner = scope.inner()
        head = self.turns(inner)
        inner.floats.append(low)
        body = [f"{new} = {self.vector(inner, size)}"]
        inner.vectors[new] = size
        body += [f"{value} = {self.number(inner)}", f"if {value} < {low}:"]
        inner.floats.append(value)
        kept = self.pick([f"{best} = {new}", f"{best} = {new}.copy()", f"{best}[:] = {new}"])
        body += indented([f"{low} = {value}", kept])
        body += self.extra(inner)
        scope.floats.append(low)
        return [*lines, head, *indented(body)]

    def sum_then_call(self, scope):
        """A loop that only adds up, then a call that keeps values."""
        total, inner = self.name("u"), scope.inner()
        head = self.turns(inner)
        lines = [f"{total} = 0.0", head, f"    {total} += {self.number(inner)}"]
        scope.floats.append(total)
        calls = self.callable_helpers(*self.with_numbers())
        if calls:
            end = f"{total} {self.pick(['-', '+', '*'])} {group(self.number_call(scope))}"
            lines.append(f"{total} = np.sin({end})")
        return lines

    def rows_of_work(self, scope):
        """A matrix whose rows are made from each other."""
        size, rows, m, i = self.length, 2 + self.choose(2), self.name("m"), self.name("i")
        lines = [f"{m} = np.{self.pick(['zeros', 'empty'])}(({rows}, {size}))"]
        lines.append(f"{m}[0] = {self.vector(scope, size)}")
        inner = scope.inner()
        inner.ints[i] = (1, rows - 1)
        row = self.name("v")
        if self.chance(1, 2):
            body = [f"{m}[{i}] = np.sin({m}[{i} - 1] + {group(self.vector(inner, size))})"]
        else:
            body = [f"{row} = {m}[{i}]", f"{row}[:] = {m}[{i} - 1] * {self.small(inner, 1)}"]
            inner.vectors[row] = size
            body += self.extra(inner)
            body.append(f"{row}[{self.index(inner, row, size)}] += {self.small(inner, 1)}")
        scope.matrices[m] = (rows, size)
        return [*lines, f"for {i} in range(1, {rows}):", *indented(body)]

    def views_across_writes(self, scope):
        """A slice that is taken, then what it shows is written, then it is read."""
        base = self.name("w")
        size = self.length
        lines = self.start(scope, base, size)
        length = size - self.choose(size)
        name = self.name("v")
        lines.append(f"{name} = {base}[{self.part(size, length)}]")
        target = f"{base}[{self.index(scope, base, size)}]"
        lines.append(f"{target} {self.pick(['=', '+=', '*='])} {self.small(scope)}")
        scope.vectors[name] = length
        if self.chance(1, 2):
            lines.append(f"{name} {self.pick(['+=', '*='])} {self.small(scope)}")
        return lines

    def history(self, scope):
        """States of an iteration, kept in an array and read afterwards."""
        count, name, state, i = 2 + self.choose(3), self.name("w"), self.name("u"), self.name("i")
        lines = [f"{name} = np.{self.pick(['empty', 'zeros'])}({count + 1})"]
        lines += [f"{state} = {self.small(scope)}", f"{name}[0] = {state}"]
        inner = scope.inner()
        inner.ints[i] = (0, count - 1)
        inner.floats.append(state)
        body = [f"{state} = {self.small(inner)}", *self.extra(inner)]
        body.append(f"{name}[{i} + 1] = {state} + 0.3 * {name}[{i}]")
        scope.floats.append(state)
        scope.vectors[name] = count + 1
        return [*lines, f"for {i} in range({count}):", *indented(body)]

    def records(self, scope):
        """New arrays for what a simulation does in each step, which reads it again at once."""
        size, state, i = self.length, self.name("u"), self.name("i")
        names = [self.name("w") for _ in range(1 + self.choose(3))]
        lines = [f"{name} = np.{self.pick(['zeros', 'empty'])}({size})" for name in names]
        lines.append(f"{state} = {self.small(scope)}")
        inner = scope.inner()
        inner.ints[i] = (0, size - 1)
        inner.floats.append(state)
        body = []
        for k, name in enumerate(names):
            before = f" * {self.pick(names[:k])}[{i}]" if k and self.chance(1, 2) else ""
            body.append(f"{name}[{i}] = 0.5 * {state} * {group(self.small(inner))}{before}")
            sign = self.pick(["+", "-"])
            body.append(f"{state} {sign}= 0.3 * np.sin({name}[{i}]) * {name}[{i}]")
        body += self.extra(inner)
        scope.floats.append(state)
        for name in names:
            scope.vectors[name] = size
        return [*lines, f"for {i} in range({size}):", *indented(body)]

    def shifted_sums(self, scope):
        """Elements that become sums of their neighbours."""
        size, name, i = self.length, self.name("w"), self.name("i")
        lines = self.start(scope, name, size)
        inner = scope.inner()
        inner.ints[i] = (1, size - 1)
        sign = self.pick(["+=", "=", "-="])
        value = self.small(inner, 1)
        body = [f"{name}[{i}] {sign} 0.4 * {name}[{i} - 1] * {group(value)}", *self.extra(inner)]
        order = self.pick([f"range(1, {size})", f"range({size} - 1, 0, -1)"])
        return [*lines, f"for {i} in {order}:", *indented(body)]
