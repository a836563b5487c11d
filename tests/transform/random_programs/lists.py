"""Lists of floats: displays, comprehensions, two names, appends on some paths, inner functions."""

from .complexes import ComplexNumbers
from .scope import group, indented


class Lists(ComplexNumbers):
    """Writes lists, which are never empty where they have a name."""

    def list_item(self, scope):
        """A number of a list, or the position of one."""
        name = self.pick(scope.lists)
        counts = [k for k, (least, _) in scope.ints.items() if least >= 0]
        kind = self.weighted(
            last=4,
            first=2,
            middle=2,
            counted=3 * bool(counts),
            sum=1,
            extreme=1,
            array=2,
            length=1,
        )
        if kind == "sum":
            return f"np.tanh(sum({name}))"
        if kind == "extreme":
            return f"{self.pick(['min', 'max'])}({name})"
        if kind == "array":
            return f"np.{self.pick(['mean', 'max', 'prod'])}(np.array({name}))"
        if kind == "length":
            return f"0.1 * len({name})"
        index = {"last": "-1", "first": "0", "middle": f"len({name}) // 2"}.get(kind)
        return f"{name}[{index or f'{self.pick(counts)} % len({name})'}]"

    def list_made(self, scope, name):
        """Lines that make a list of at least one float."""
        lines = self.list_lines(scope, name)
        scope.lists.append(name)
        return lines

    def list_lines(self, scope, name):
        some = bool(scope.vectors)
        kind = self.weighted(
            display=4, repeated=1, elements=2 * some, chosen=some, pairs=some, array=some
        )
        if kind == "display":
            items = [self.small(scope, 1) for _ in range(1 + self.choose(3))]
            return [f"{name} = [{', '.join(items)}]"]
        if kind == "repeated":
            return [f"{name} = [{self.pick(['0.0', self.small(scope, 1)])}] * {1 + self.choose(3)}"]
        array, e = self.pick(scope.vectors), self.name("e")
        if kind == "array":
            return [f"{name} = list({array})"]
        inner = scope.inner()
        inner.floats.append(e)
        value = self.small(inner, 1)
        if kind == "elements":
            return [f"{name} = [{value} for {e} in {array}]"]
        if kind == "pairs":
            i = self.name("i")
            return [f"{name} = [{i} * {group(value)} for {i}, {e} in enumerate({array})]"]
        lines = [f"{name} = [{self.small(scope, 1)}]"]
        return [*lines, f"{name} += [{value} for {e} in {array} if {e} > 0.1]"]

    def list_change(self, scope, name, inside=False):
        """Lines that change a list, which may have other names; `inside` of an inner function."""
        kind = self.weighted(append=6, item=3, extend=1, pop=2, add=not inside)
        value = self.small(scope, 1)
        if kind == "append":
            last = self.pick([value, value, f"0.7 * {name}[-1] + {value}"])
            return [f"{name}.append({last})"]
        if kind == "item":
            sign = self.pick(["=", "+=", "*="])
            return [f"{name}[{self.pick(['0', '-1', f'len({name}) // 2'])}] {sign} {value}"]
        if kind == "extend":
            whole = [*scope.vectors, f"[{value}, 0.3]"]
            return [f"{name}.extend({self.pick(whole)})"]
        if kind == "add":
            return [f"{name} += [{value}, {self.small(scope, 1)}]"]
        used = self.pick([None, *scope.free()]) if not inside else None
        popped = f"{used} = np.sin({name}.pop())" if used else f"{name}.pop()"
        return [f"if len({name}) > 1:", f"    {popped}"]

    def list_of_floats(self, scope):
        """A list that grows in a loop, on some paths only, perhaps under two names."""
        name = self.name("l")
        lines = self.list_made(scope, name)
        names = [name]
        if self.chance(1, 2):
            self.note("list with two names")
            names.append(self.name("l"))
            scope.lists.append(names[1])
            lines.append(f"{names[1]} = {name}")
        lines += self.list_change(scope, self.pick(names)) if self.chance(1, 2) else []
        inner = scope.inner()
        if scope.vectors and self.chance(1, 2):
            array, e = self.pick(scope.vectors), self.name("e")
            head, inner.floats = f"for {e} in {array}:", [*inner.floats, e]
        else:
            head = self.turns(inner)
        body = []
        for _ in range(1 + self.choose(2)):
            change = self.list_change(inner, self.pick(names))
            if self.chance(1, 2):
                self.note("list changed in a branch")
                change = [f"if {self.condition(inner)}:", *indented(change)]
                if self.chance(1, 3):
                    change += ["else:", *indented(self.list_change(inner, self.pick(names)))]
            body += change
        body += self.extra(inner)
        if self.chance(1, 4):
            body += self.leaving(inner)
        lines += [head, *indented(body)]
        return [*lines, *self.list_read(scope, names)]

    def list_read(self, scope, names):
        """Lines that use a list once more."""
        kind = self.weighted(nothing=2, loop=3, array=2, copy=1, part=1)
        name, total = self.pick(names), self.name("u")
        if kind == "nothing":
            return []
        if kind in ("copy", "part"):
            made = self.name("l")
            text = f"{name}.copy()" if kind == "copy" else f"{name}[:1]"
            scope.lists.append(made)
            return [f"{made} = {text}", *self.list_change(scope, self.pick([made, name]))]
        if kind == "array":
            v = self.name("v")
            lines = [f"{v} = np.array({name})", f"{v}[0] *= {self.small(scope, 1)}"]
            scope.floats.append(total)
            return [*lines, f"{total} = np.sum({v} * {v}) / len({v})"]
        scope.floats.append(total)
        e, inner = self.name("e"), scope.inner()
        inner.floats.append(e)
        term = self.small(inner, 1)
        return [f"{total} = 0.0", f"for {e} in {name}:", f"    {total} += {e} * {term}"]

    def list_in_inner_function(self, scope):
        """An inner function that appends to a list of the function it stands in."""
        name, put, v = self.name("l"), self.name("put"), self.name("v")
        lines = self.list_made(scope, name)
        inner = scope.inner()
        inner.floats.append(v)
        others, self.helpers = self.helpers, self.helpers[:1]
        body = self.list_change(inner, name, inside=True)
        if self.chance(1, 2):
            body = [f"if {v} > 0.1:", *indented(body)]
        body.append(f"{name}.append({v} * {self.small(inner, 1)})")
        self.helpers = others
        lines += [f"def {put}({v}):", *indented(body)]
        turn = scope.inner()
        head = self.turns(turn)
        lines += [head, f"    {put}({self.number(turn, 1)})"]
        if self.chance(1, 2):
            lines.append(f"{put}({self.number(scope, 1)})")
        return lines

    def list_to_helper(self, scope):
        """A list becomes an array that a helper takes."""
        name, v, e = self.name("l"), self.name("v"), self.name("e")
        size = self.length
        same = scope.of_length(size)
        if same:
            inner = scope.inner()
            inner.floats.append(e)
            lines = [f"{name} = [{self.small(inner, 1)} for {e} in {self.pick(same)}]"]
        else:
            items = [self.small(scope, 1) for _ in range(size)]
            lines = [f"{name} = [{', '.join(items)}]"]
        lines.append(f"{v} = np.{self.pick(['array', 'asarray'])}({name})")
        scope.lists.append(name)
        scope.vectors[v] = size
        calls = self.callable_helpers(*self.with_numbers())
        if calls:
            u = self.name("u")
            lines.append(f"{u} = np.sin({self.number_call(scope)})")
            scope.floats.append(u)
        return lines
