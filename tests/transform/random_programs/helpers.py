"""Functions that the program's function calls, each of a form that real code has."""

from .idioms import Idioms
from .scope import Helper, Parameter, Scope, group, indented

MODES = ("'sin'", "'tanh'", "'plain'")


class Helpers(Idioms):
    """Writes helpers, which may call those written before."""

    def helper(self):
        """Lines of a helper, which is added to those that may be called."""
        form = self.weighted(
            work=3,
            fresh=3,
            view_of_fresh=3,
            chosen=3,
            twice=2,
            given=3,
            out=3,
            several=3,
            options=3,
            recursion=2,
            search=2,
            position=2,
            formula=2,
            matrix_made=2,
            statements=4,
            complex=2,
            structure=3,
        )
        self.note(f"helper: {form.replace('_', ' ')}")
        if self.helpers:
            before = set(self.shapes)
        name = f"h{len(self.helpers)}"
        self.left, self.trips = 2, 2
        parameters, result, body = getattr(self, f"{form}_helper")(name)
        if self.helpers and any(f"{h.name}(" in line for h in self.helpers for line in body):
            self.shapes = before | self.shapes | {"helper calls a helper"}
        steps = 2 + 4 * sum("for " in line or "while " in line for line in body)
        steps += sum(h.steps * 2 for h in self.helpers if any(f"{h.name}(" in b for b in body))
        helper = Helper(name, tuple(parameters), result, steps * (4 if "recursion" in form else 1))
        self.helpers.append(helper)
        shown = ", ".join(
            p.name if p.default is None else f"{p.name}={p.default}" for p in parameters
        )
        decorator = self.pick(["@tg.njit", "@njit", "@tg.njit(boundscheck=False)"])
        before = [line for made, line in self.derived.items() if any(made in b for b in body)]
        return [*before, "", "", decorator, f"def {name}({shown}):", *indented(body)]

    def plain(self, *, matrix=False):
        """Parameters of most helpers, a number and an array, and the scope they make."""
        parameters = [Parameter("p", "float"), Parameter("q", ("vector", self.length))]
        scope = Scope(floats=["p"], vectors={"q": self.length})
        if matrix or self.chance(1, 6):
            parameters.append(Parameter("r", ("matrix", 2, self.length)))
            scope.matrices["r"] = (2, self.length)
        return parameters, scope

    def finish(self, scope, result):
        """Perhaps a statement, for which a return may be written."""
        self.returns = result
        return self.statement(scope, False) if self.chance(1, 3) else []

    def made(self, scope, name, length):
        """Lines that make an array and fill it."""
        make = f"np.empty({length})"
        like = scope.of_length(length)
        kind = self.weighted(loop=4, expression=2, change=2 * bool(like))
        if kind == "expression":
            lines = [f"{name} = {self.fresh_vector(scope, length)}"]
        elif kind == "change":
            lines = [f"{name} = {self.pick(like)}.copy()"]
            scope.vectors[name] = length
            lines.append(f"{name}[{self.index(scope, name, length)}] += {self.small(scope, 1)}")
        else:
            if like and self.chance(1, 2):
                make = f"np.{self.pick(['empty', 'zeros'])}_like({self.pick(like)})"
            lines = [f"{name} = {make}", *self.filled(scope, name, length)]
        scope.vectors[name] = length
        return lines

    def work_helper(self, name):
        """A work array is made, filled and read; a number comes back."""
        parameters, scope = self.plain()
        body = self.made(scope, "w", self.length)
        if self.chance(1, 2):
            i = self.name("i")
            scope.ints[i] = (0, self.length - 1)
            value = self.small(scope, 1)
            body += [f"for {i} in range({self.length}):"]
            body += [f"    w[{i}] {self.pick(['=', '+=', '*='])} w[{i} - 1] * {value}"]
            del scope.ints[i]
        body += self.finish(scope, "float")
        value = group(self.vector(scope, self.length))
        first, last = self.element(scope), self.element(scope)
        options = [f"np.sum(w * {value})", f"{first} * {last}", "np.sum(w * w)", "np.max(w)"]
        return parameters, "float", [*body, f"return {self.pick(options)}"]

    def fresh_helper(self, name):
        """An array that was made comes back."""
        parameters, scope = self.plain()
        body = self.made(scope, "w", self.length)
        result = ("vector", self.length)
        return parameters, result, [*body, *self.finish(scope, result), "return w"]

    def view_of_fresh_helper(self, name):
        """A part of an array that was made comes back."""
        parameters, scope = self.plain()
        size = self.length
        kind = self.weighted(part=3, row=2, column=1, turned=2, shaped=2, held=2)
        if kind in ("part", "held"):
            length = size + self.choose(2)
            body = self.made(scope, "w", length)
            part = f"w[{self.part(length, size)}]"
            if kind == "held":
                body += [f"v = {part}", f"w[{self.choose(length)}] *= {self.small(scope, 1)}"]
                part = "v"
            return parameters, ("vector", size), [*body, f"return {part}"]
        if kind == "shaped":
            body = self.made(scope, "w", 2 * size)
            return parameters, ("matrix", 2, size), [*body, f"return w.reshape((2, {size}))"]
        rows, columns = (size, 2) if kind in ("column", "turned") else (2, size)
        i, j, inner = self.name("i"), self.name("j"), scope.inner()
        inner.ints[i], inner.ints[j] = (0, rows - 1), (0, columns - 1)
        body = [
            f"w = np.empty(({rows}, {columns}))",
            f"for {i} in range({rows}):",
            f"    for {j} in range({columns}):",
            f"        w[{i}, {j}] = {self.small(inner, 1)}",
        ]
        if kind == "turned":
            return parameters, ("matrix", 2, size), [*body, "return w.T"]
        part = f"w[{self.choose(2)}]" if kind == "row" else f"w[:, {self.choose(2)}]"
        return parameters, ("vector", size), [*body, f"return {part}"]

    def chosen_helper(self, name):
        """One of two arrays comes back: by two returns, a branch, an expression."""
        parameters, scope = self.plain()
        size = self.length
        body = [*self.made(scope, "w", size), f"z = {self.vector(scope, size)}"]
        other = self.pick(["z", "z", "q"])
        test = self.condition(scope)
        kind = self.weighted(returns=3, branch=2, expression=1, loop=1)
        if kind == "returns":
            body += [f"if {test}:", f"    return {other}", "return w"]
        elif kind == "branch":
            body += [f"if {test}:", f"    w = {other}", "return w"]
        elif kind == "expression":
            body += [f"return w if {test} else {other}"]
        else:
            e = self.name("e")
            body += ["for " + e + " in q:", f"    if {e} > 0.2:", f"        return {other}"]
            body += ["return w"]
        return parameters, ("vector", size), body

    def twice_helper(self, name):
        """One array comes back twice, or with a view of it."""
        parameters, scope = self.plain()
        size = self.length
        body = self.made(scope, "w", size)
        second = self.pick(["w", "w", "w[::-1]", "q", "w[:]"])
        kinds = ("vector", size), ("vector", size)
        return parameters, ("tuple", kinds), [*body, f"return w, {second}"]

    def given_helper(self, name):
        """An argument comes back, or a view of it."""
        parameters, scope = self.plain()
        size = self.length
        kind = self.weighted(whole=2, turned=1, changed=3, either=2, rebound=2)
        result, body = ("vector", size), []
        if kind == "whole":
            body = ["return q"]
        elif kind == "turned":
            body = ["return q[::-1]"]
        elif kind == "changed":
            index = self.index(scope, "q", size)
            body = [f"q[{index}] {self.pick(['=', '+=', '*='])} {self.small(scope)}"]
            body += self.finish(scope, result)
            body += ["return q"]
        elif kind == "either":
            body = [f"if {self.condition(scope)}:", "    return q"]
            body += [*self.made(scope, "w", size), "return w"]
        else:
            body = [f"if {self.condition(scope)}:", f"    q = {self.fresh_vector(scope, size)}"]
            body += ["return q"]
        return parameters, result, body

    def out_helper(self, name):
        """Results are written into an argument; it may come back as well."""
        parameters, scope = self.plain()
        size = self.length
        parameters.append(Parameter("out", ("vector", size)))
        inner = scope.inner()
        inner.vectors["out"] = size
        if self.chance(2, 3):
            source = inner if self.chance(1, 3) else scope
            body = self.filled(source, "out", size)
        else:
            body = [f"out[:] = {self.vector(scope, size)}"]
        if self.chance(1, 3):
            body.append(f"out[{self.index(inner, 'out', size)}] *= {self.small(inner, 1)}")
        result = self.pick([None, None, ("vector", size), "float"])
        body += self.finish(inner, result)
        if result is not None:
            self.note("out array written and something returned")
            body.append("return out" if result != "float" else f"return {self.total(inner)}")
        return parameters, result, body

    def several_helper(self, name):
        """A tuple of numbers and arrays, or a named tuple."""
        parameters, scope = self.plain()
        size = self.length
        body = self.made(scope, "w", size)
        if self.chance(1, 3):
            self.note("named tuple returned")
            grid = self.pick(["w", "q", "w.copy()"])
            body.append(f"return State({group(self.number(scope))} + 0.0, {grid})")
            return parameters, ("record", size), body
        kind = self.weighted(value=2, arrays=2, numbers=1)
        if kind == "numbers":
            body.append(f"return {self.small(scope)}, {self.small(scope)}")
            return parameters, ("tuple", ("float", "float")), body
        if kind == "value":
            body += self.finish(scope, ("tuple", ("float", ("vector", size))))
            body.append(f"return {group(self.number(scope))} + 0.0, w")
            return parameters, ("tuple", ("float", ("vector", size))), body
        body.append(f"z = {self.fresh_vector(scope, size)}")
        first = self.pick(["z", "z", "w * z"])
        return parameters, ("tuple", (("vector", size),) * 2), [*body, f"return w, {first}"]

    def options_helper(self, name):
        """Options with defaults: a word, None, a truth value, a count, a tuple."""
        parameters, scope = self.plain()
        body = ["u = " + self.number(scope)]
        scope.floats.append("u")
        kinds = ["mode", "weight", "scaled", "order", "pair"]
        chosen = [kind for kind in kinds if self.chance(1, 2)] or [self.pick(kinds)]
        for kind in chosen:
            self.note(f"option: {kind}")
            value = self.small(scope, 1)
            if kind == "mode":
                parameters.append(Parameter("mode", kind, self.pick(MODES), MODES))
                body += ["if mode == 'sin':", "    u = np.sin(u)"]
                body += ["elif mode == 'tanh':", f"    u = np.tanh(u * {value})"]
            elif kind == "weight":
                given = ("None", "0.7", "-0.4")
                parameters.append(Parameter("weight", kind, "None", given))
                body += ["if weight is None:", f"    u = u + {value}"]
                body += ["else:", f"    u = u * weight + {value}"]
            elif kind == "scaled":
                default = self.pick(["True", "False"])
                parameters.append(Parameter("scaled", kind, default, ("True", "False")))
                body += ["if scaled:", f"    u *= {value}"]
            elif kind == "order":
                parameters.append(Parameter("order", kind, "2", ("1", "2", "3")))
                body += ["for i in range(order):", f"    u += {value} * q[i % {self.length}]"]
            else:
                parameters.append(
                    Parameter("pair", kind, "(0.3, 0.8)", ("(0.3, 0.8)", "(0.5, -0.2)"))
                )
                body += [f"u = pair[0] * u + pair[1] * {value}"]
        return parameters, "float", [*body, *self.finish(scope, "float"), "return np.sin(u)"]

    def recursion_helper(self, name):
        """A function that calls itself."""
        parameters, scope = self.plain()
        parameters = [*parameters[:2], Parameter("n", ("int", 0, 3))]
        scope.ints["n"] = (0, 3)
        scope.kept.add("n")
        scope.matrices.clear()
        first = self.small(scope, 1)
        array = self.pick(["q", "q", "q[::-1]", self.fresh_vector(scope, self.length)])
        deeper = f"{name}({self.small(scope, 1)}, {array}, n - 1)"
        body = ["if n <= 0:", f"    return {first}"]
        if self.chance(1, 2):
            body.append(f"q[n % {self.length}] *= {self.small(scope, 1)}")
        body.append(f"return np.sin({deeper} * {group(self.number(scope, 1))})")
        return parameters, "float", body

    def search_helper(self, name):
        """A loop that returns when it has found something."""
        parameters, scope = self.plain()
        self.note("early return in a loop")
        inner = scope.inner()
        inner.ints["i"] = (0, self.length - 1)
        inner.floats.append("u")
        body = ["u = 0.0", f"for i in range({self.length}):"]
        body += [f"    u += {self.small(inner, 1)}"]
        body += [f"    if u > {self.pick(['0.2', '0.5', 'p'])}:"]
        body += [f"        return {self.number(inner)}"]
        scope.floats.append("u")
        return parameters, "float", [*body, f"return {self.number(scope)}"]

    def position_helper(self, name):
        """A position in an array."""
        parameters, scope = self.plain()
        inner = scope.inner()
        inner.ints["i"] = (0, self.length - 1)
        body = ["k = 0", f"for i in range({self.length}):"]
        body += [f"    if {self.condition(inner)}:", f"        {self.pick(['k = i', 'k += 1'])}"]
        if self.chance(1, 3):
            body += [f"        q[i] += {self.small(inner, 1)}"]
        return parameters, ("int", 0, self.length), [*body, "return k"]

    def formula_helper(self, name):
        """An expression."""
        parameters, scope = self.plain()
        body = self.finish(scope, "float")
        return parameters, "float", [*body, f"return {self.number(scope, 3)}"]

    def matrix_made_helper(self, name):
        """A matrix comes back, or its transpose, or one that was given."""
        parameters, scope = self.plain(matrix=True)
        shape = (2, self.length)
        body = [f"w = {self.matrix(scope, *shape)}"]
        scope.matrices["w"] = shape
        body.append(f"{self.cell(scope)} += {self.small(scope, 1)}")
        body += self.finish(scope, ("matrix", *shape))
        kind = self.weighted(whole=2, other=1, turned=1)
        if kind == "turned":
            body.append(f"z = {self.matrix(scope, *shape[::-1])}")
            scope.matrices["z"] = shape[::-1]
            body.append(f"z[{self.index(scope, None, self.length)}, 1] = {self.small(scope, 1)}")
            return parameters, ("matrix", *shape), [*body, "return z.T"]
        if kind == "other":
            body += [f"if {self.condition(scope)}:", "    return r"]
        return parameters, ("matrix", *shape), [*body, "return w"]

    def structure_helper(self, name):
        """An argument is a tuple with an array, which is written; a part of it comes back."""
        parameters, scope = self.plain()
        size = self.length
        kind = self.weighted(pair=2, record=2, nested=1)
        if kind == "pair":
            given, array, level = ("tuple", (("vector", size), "float")), "s[0]", "s[1]"
        elif kind == "record":
            given, array, level = ("record", size), "s.grid", "s.level"
        else:
            inner = ("tuple", ("float", ("vector", size)))
            given, array, level = ("tuple", (inner, "float")), "s[0][1]", "s[0][0]"
        parameters = [parameters[0], Parameter("s", given)]
        scope.vectors.clear()
        scope.matrices.clear()
        scope.add("s", given)
        body = []
        if self.chance(1, 2):
            scope.vectors["w"] = size
            body.append(f"w = {array}")
            array = self.pick([array, "w"])
        index = self.index(scope, None, size)
        sign = self.pick(["=", "+=", "*="])
        write = f"{array}[{index}] {sign} {self.small(scope, 1)} * {level}"
        whole = f"{array}[:] = np.sin({array} * {level}) + p"
        body += self.pick(
            [[write], [write], [whole], [f"if {self.condition(scope)}:", f"    {write}"]]
        )
        returned = self.weighted(array=3, part=2, level=1, both=2, nothing=1, same=1)
        results = {
            "array": (("vector", size), array),
            "part": (("vector", size), f"{array}[::-1]"),
            "level": ("float", f"{level} * {array}[0]"),
            "both": (("tuple", ("float", ("vector", size))), f"{level} + p, {array}"),
            "nothing": (None, ""),
            "same": (given, "s"),
        }
        result, text = results[returned]
        return parameters, result, [*body, f"return {text}".strip()]

    def complex_helper(self, name):
        """Complex arguments and results, numbers and arrays."""
        parameters, scope = self.plain()
        if self.chance(2, 3):
            parameters.append(Parameter("z", "complex"))
            scope.complexes.append("z")
        body = getattr(self, self.pick(["complex_numbers", "complex_array"]))(scope)
        kind = self.weighted(real=1, number=2, array=2 * bool(scope.complex_vectors))
        if kind == "array":
            array, size = self.pick(scope.complex_vectors.items())
            return parameters, ("complex vector", size), [*body, f"return {array}"]
        if kind == "number":
            return parameters, "complex", [*body, f"return {self.bounded(scope)}"]
        return parameters, "float", [*body, f"return {self.real_part(scope)}"]

    def statements_helper(self, name):
        """Any statements, any result."""
        parameters, scope = self.plain()
        size = self.length
        vector = ("vector", size)
        self.returns = self.pick(["float", "float", vector, None, ("tuple", ("float", vector))])
        self.left = 4
        scope.own = {*scope.floats, *scope.ints}
        self.trips = 1
        body = self.block(scope, 3)
        if self.returns is not None:
            body.append(f"return {self.result_of(scope, self.returns)}")
        return parameters, self.returns, body
