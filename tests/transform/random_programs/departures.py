"""Functions with loops that are left, or gone round, with values of other types.

Negative powers of integers, in what they return, show which types their variables have.
"""

import random

HEAD = "import tapegrad as tg\n\n\n@tg.njit\ndef f(x, n):\n    s, c, i = 0.0, 0, 0\n"
VALUES = ["0.5", "1.5", "r + 1", "q - 1", "0", "2", "q", "r", "x", "r * 0.5", "w"]


class Departures:
    """Writes one function."""

    def __init__(self, seed):
        self.draw = random.Random(seed)

    def condition(self):
        draw = self.draw
        number, than = draw.choice(["i", "c", "n - c", "i + c"]), draw.choice(["==", ">", "<"])
        return f"{number} {than} {draw.randint(0, 4)}"

    def statement(self, depth, indent, in_loop):
        draw, kind, space = self.draw, self.draw.random(), "    " * indent
        variable = draw.choice("rqw")
        if kind < 0.3:
            yield f"{space}s += 2 ** ({variable} - {draw.randint(0, 3)}) * x"
        elif kind < 0.45:
            yield f"{space}{variable} = {draw.choice(VALUES)}"
        elif kind < 0.5:
            yield f"{space}s += {variable} * {draw.choice('rqw')}"
        elif kind < 0.57:
            yield f"{space}{variable} += 1"
        elif kind < 0.82:
            yield f"{space}if {self.condition()}:"
            yield from self.block(depth - 1, indent + 1, in_loop)
            if in_loop and draw.random() < 0.6:
                jump = draw.choice(["break", "break", "break", "continue", "return s + r"])
                yield f"{space}    {jump}"
            if draw.random() < 0.4:
                yield f"{space}else:"
                yield from self.block(depth - 1, indent + 1, in_loop)
                if in_loop and draw.random() < 0.4:
                    yield f"{space}    {draw.choice(['break', 'break', 'continue'])}"
        elif depth > 0:
            if draw.random() < 0.6:
                yield f"{space}for i in range({draw.choice(['n', '3', 'c % 4'])}):"
            else:
                yield f"{space}while c < {draw.randint(3, 9)}:"
            yield f"{space}    c += 1"
            yield f"{space}    if c > 12: break"
            yield from self.block(depth - 1, indent + 1, True)
            if draw.random() < 0.25:
                yield f"{space}else:"
                yield from self.block(depth - 1, indent + 1, in_loop)

    def block(self, depth, indent, in_loop):
        yield "    " * indent + "s += x"
        for _ in range(self.draw.randint(1, 3)):
            yield from self.statement(depth, indent, in_loop)

    def text(self):
        """Return the text of a module with the function ``f(x, n)``."""
        lines = [f"    {name} = {self.draw.choice(['0', '1', '2', 'n'])}" for name in "rqw"]
        lines += self.block(2, 1, False)
        lines += ["    for i in range(n):", "        c += 1", *self.block(4, 2, True)]
        return HEAD + "\n".join([*lines, "    return s + r * x + q + w"]) + "\n"
