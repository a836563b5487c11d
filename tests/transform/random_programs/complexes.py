"""Complex numbers and arrays on the way to real results."""

from .broadcasts import Broadcasts
from .scope import group, indented

ONE = [
    "{} ** 2",
    "{}.conjugate()",
    "np.conj({})",
    "-{}",
    "1j * {}",
    "np.exp(1j * {}.real)",
    "{0} / (1.0 + abs({0}))",
    "np.exp({0} / (1.0 + abs({0})))",
    "np.sqrt(2.5 + {0} / (1.0 + abs({0})))",
    "np.log(2.5 + {0} / (1.0 + abs({0})))",
    "np.sin({0} / (1.0 + abs({0})))",
]
TWO = ["{} + {}", "{} * {}", "{} - {}", "{} / (2.5 + np.exp(1j * {}.real))", "{} * {}.conjugate()"]
REAL = [
    "{}.real",
    "{}.imag",
    "abs({})",
    "abs({}) ** 2",
    "np.real({})",
    "np.imag({})",
    "np.angle(2.5 + {0} / (1.0 + abs({0})))",
    "({} * (0.3 - 0.8j)).imag",
]
REAL_ARRAYS = ["{}.real", "{}.imag", "np.abs({})", "({0} * {0}.conj()).real", "np.real({0} * 1j)"]
DIRECTION = "(0.6 + 0.8j)"


class ComplexNumbers(Broadcasts):
    """Writes complex expressions and statements; what they make ends in real numbers."""

    def complex_number(self, scope, depth=2):
        """An expression whose value is complex, of size one or so."""
        names, arrays = bool(scope.complexes), bool(scope.complex_vectors)
        kind = self.weighted(
            pair=2,
            turn=3,
            name=4 * names,
            element=3 * arrays,
            total=arrays,
            one=3 * bool(depth),
            two=4 * bool(depth),
            scaled=2 * bool(depth),
            choice=bool(depth),
        )
        if kind == "pair":
            return f"complex({self.small(scope, 1)}, {self.small(scope, 1)})"
        if kind == "turn":
            return f"np.exp(1j * {group(self.number(scope, 1))})"
        if kind == "name":
            return self.pick(scope.complexes)
        if kind == "element":
            name = self.pick(scope.complex_vectors)
            return f"{name}[{self.index(scope, None, scope.complex_vectors[name])}]"
        if kind == "total":
            return f"np.{self.pick(['sum', 'mean'])}({self.pick(scope.complex_vectors)})"
        first = group(self.complex_number(scope, depth - 1))
        if kind == "one":
            return self.pick(ONE).format(first)
        if kind == "scaled":
            return f"{group(self.atom(scope))} {self.pick(['*', '+', '-'])} {first}"
        second = group(self.complex_number(scope, depth - 1))
        if kind == "choice":
            return f"({first} if {self.condition(scope, 0)} else {second})"
        return self.pick(TWO).format(first, second)

    def bounded(self, scope):
        """A complex number that stays small when it goes round a loop."""
        return f"np.tanh(abs({self.complex_number(scope)})) * {self.unit(scope)}"

    def unit(self, scope):
        return self.pick([DIRECTION, f"np.exp(1j * {group(self.number(scope, 1))})"])

    def real_part(self, scope):
        """A real number of a complex one."""
        return self.pick(REAL).format(group(self.complex_number(scope, 1)))

    def complex_vector(self, scope, length):
        """An array expression whose elements are complex."""
        same = [name for name, size in scope.complex_vectors.items() if size == length]
        kind = self.weighted(turn=2, parts=2, name=2 * bool(same), product=2 * bool(same))
        if kind == "turn":
            return f"np.exp(1j * {group(self.vector(scope, length))})"
        if kind == "parts":
            return f"{group(self.vector(scope, length))} + 1j * {group(self.vector(scope, length))}"
        if kind == "name":
            name = self.pick(same)
            return self.pick([name, f"{name}[::-1]", f"np.conj({name})"])
        return f"{self.pick(same)} * {self.unit(scope)}"

    def complex_numbers(self, scope):
        """A complex number, perhaps iterated until it is large."""
        name = self.name("z")
        lines = [f"{name} = {self.complex_number(scope)}"]
        scope.complexes.append(name)
        kind = self.weighted(once=2, powers=2, steps=2)
        if kind == "once":
            return [*lines, *self.written_part(scope, name)]
        inner = scope.inner()
        head = self.turns(inner)
        if kind == "powers":
            body = [f"{name} = 0.5 * {name} * {name} + {self.bounded(inner)}"]
            if self.chance(1, 2):
                body += [f"if abs({name}) > {self.pick(['0.9', '1.4'])}:", "    break"]
        else:
            sign = self.pick(["+=", "*=", "-="])
            step = f"{self.bounded(inner)}"
            body = [*self.extra(inner), f"{name} {sign} {step}"]
        return [*lines, head, *indented(body)]

    def written_part(self, scope, name):
        """Perhaps a real number that is made of a complex one."""
        if self.chance(1, 2):
            return []
        u = self.name("u")
        scope.floats.append(u)
        return [f"{u} = {self.pick(REAL).format(name)}"]

    def complex_array(self, scope):
        """A complex work array: made, filled in a loop, changed; real parts are taken from it."""
        size, w = self.length, self.name("w")
        maker = self.weighted(loop=4, expression=2, transform=2)
        if maker == "expression":
            lines = [f"{w} = {self.complex_vector(scope, size)}"]
            if "=" in lines[0] and lines[0].split(" = ")[1] in scope.complex_vectors:
                lines[0] += ".copy()"
        elif maker == "transform":
            data, i, j = self.vector(scope, size), self.name("i"), self.name("j")
            v = self.name("v")
            lines = [
                f"{v} = {data}",
                f"{w} = np.zeros({size}, np.complex128)",
                f"for {i} in range({size}):",
                f"    for {j} in range({size}):",
                f"        {w}[{i}] += {v}[{j}] * np.exp(-2j * np.pi * {i} * {j} / {size})",
            ]
            scope.vectors[v] = size
        else:
            i, inner = self.name("i"), scope.inner()
            make = self.pick(["np.zeros", "np.empty"])
            inner.ints[i] = (0, size - 1)
            lines = [f"{w} = {make}({size}, {self.pick(['np.complex128', 'dtype=np.complex128'])})"]
            lines += [f"for {i} in range({size}):"]
            lines += indented([f"{w}[{i}] = {self.complex_number(inner)}", *self.extra(inner)])
        scope.complex_vectors[w] = size
        index = self.index(scope, w, size)
        change = self.weighted(nothing=1, element=3, part=2, whole=2, view=1)
        if change == "element":
            lines.append(f"{w}[{index}] {self.pick(['=', '+=', '*='])} {self.bounded(scope)}")
        elif change == "part":
            part = self.pick(["real", "imag"])
            value = self.small(scope, 1)
            if self.chance(1, 2):
                lines.append(f"{w}.{part}[{index}] {self.pick(['=', '+='])} {value}")
            else:
                lines.append(f"{w}.{part}[:] = {self.vector(scope, size)}")
        elif change == "whole":
            lines.append(f"{w} {self.pick(['*=', '+='])} {self.unit(scope)}")
        elif change == "view":
            v = self.name("z")
            lines.append(f"{v} = {w}[{self.part(size, size)}]")
            lines.append(f"{w}[{index}] *= {self.unit(scope)}")
            scope.complex_vectors[v] = size
        name = self.name("v")
        lines.append(f"{name} = {self.pick(REAL_ARRAYS).format(w)}")
        scope.vectors[name] = size
        return lines
