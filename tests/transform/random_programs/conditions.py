"""Functions with conditions of constants, in all places where Python has conditions.

What they return is an integer or a float, by the branches that numba leaves out.
"""

import random

HEAD = "import numpy as np, tapegrad as tg\n\nG, D, N = 1, 0, None\n\n\n@tg.njit\ndef f(q, k):\n"
CONSTANTS = ["0", "1", "G", "D", "u", "w", "not D", "-G", "G - 1", "u * 0", "N is None"]
CONSTANTS += ["N is not None", "(1 if G else 0)", "q.ndim == 1", "isinstance(k, int)"]
OTHERS = ["k", "k > 0", "q[0] > 1", "k == 0", "q[1] < 0", "len(q)", "k + u"]


class Conditions:
    """Writes one function."""

    def __init__(self, seed):
        self.draw = random.Random(seed)

    def condition(self, depth=2):
        draw, kind = self.draw, self.draw.random()
        if depth and kind < 0.45:
            parts = [self.condition(depth - 1) for _ in range(draw.choice([2, 2, 3]))]
            return f"({draw.choice([' and ', ' or ']).join(parts)})"
        if depth and kind < 0.55:
            return f"(not {self.condition(depth - 1)})"
        if depth and kind < 0.62:
            test, one, two = (self.condition(depth - 1) for _ in range(3))
            return f"({one} if {test} else {two})"
        if kind < 0.75:
            one = draw.choice(["0", "1", "G", "D", "u", "w"])
            two = draw.choice(["0", "1", "2", "G", "k", "q[0]"])
            more = f" < {draw.choice('kGu3')}" if draw.random() < 0.2 else ""
            return f"({one} {draw.choice(['<', '>', '==', '<=', '!='])} {two}{more})"
        return draw.choice(CONSTANTS if draw.random() < 0.6 else OTHERS)

    def value(self):
        return self.draw.choice(["0", "1", "2", "q[0]", "q[1]", "r", "r + 1"])

    def expression(self):
        draw, kind = self.draw, self.draw.random()
        if kind < 0.4:
            return f"{self.value()} if {self.condition()} else {self.value()}"
        if kind < 0.6:
            return f"{draw.choice('uwGDkr')} {draw.choice(['and', 'or'])} {self.value()}"
        if kind < 0.7:
            return f"inner({self.value()}, {draw.choice('01ku')})"
        if kind < 0.8:
            return f"short({draw.choice('01ku')})"
        return self.value()

    def statement(self, depth, indent, in_loop):
        draw, kind, space = self.draw, self.draw.random(), "    " * indent
        if depth and kind < 0.5:
            yield f"{space}if {self.condition()}:"
            yield from self.block(depth - 1, indent + 1, in_loop)
            if draw.random() < 0.3:
                yield f"{space}elif {self.condition()}:"
                yield from self.block(depth - 1, indent + 1, in_loop)
            if draw.random() < 0.6:
                yield f"{space}else:"
                yield from self.block(depth - 1, indent + 1, in_loop)
        elif depth and kind < 0.62:
            more = f" and {self.condition()}" if draw.random() < 0.5 else ""
            yield f"{space}n{indent} = 0"
            yield f"{space}while n{indent} < {draw.choice('023')}{more}:"
            yield f"{space}    n{indent} += 1"
            yield from self.block(depth - 1, indent + 1, True)
        elif depth and kind < 0.72:
            yield f"{space}for j{indent} in range({draw.choice(['2', 'k + 1'])}):"
            yield from self.block(depth - 1, indent + 1, True)
        elif in_loop and kind < 0.76:
            yield f"{space}if {self.condition()}: {draw.choice(['break', 'continue'])}"
        elif kind < 0.79:
            yield f"{space}if {self.condition()}: return {self.value()}"
        elif kind < 0.83:
            yield f"{space}{draw.choice('uw')} = {draw.choice('01k')}"
        else:
            yield f"{space}r = {self.expression()}"

    def block(self, depth, indent, in_loop=False):
        for _ in range(self.draw.choice([1, 1, 2])):
            yield from self.statement(depth, indent, in_loop)

    def text(self):
        """Return the text of a module with the function ``f(q, k)``."""
        draw = self.draw
        lines = ["    u, w = 1, 0", f"    r = {draw.choice(['0', '1', 'q[0]'])}"]
        body = [*self.block(2, 1), *self.block(2, 1), "    return r"]
        if any("short(" in line for line in body):
            test = draw.choice("mG")
            lines.append(f"    short = lambda m: {draw.choice('01')} if {test} else q[0]")
        if any("inner(" in line for line in body):
            lines += ["    def inner(t, m):", f"        if {draw.choice(['m', 'm > 0', 'G'])}:"]
            lines += [f"            return {draw.choice('t01')}"]
            lines += [f"        return {draw.choice('t0')}"]
        return HEAD + "\n".join([*lines, *body]) + "\n"
