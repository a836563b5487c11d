"""Random programs that write to tensors and look at them through views, with loops and branches."""

import random

import numpy as np

import tapegrad as tg

ROWS, COLUMNS = 4, 3


def arguments(seed, call):
    """Return x (4, 3), y (3,), w (4,), an index k of rows and indices p of them, for one call."""
    draw = np.random.default_rng([seed, call])
    x = [
        draw.normal(size=(ROWS, COLUMNS)),
        np.asfortranarray(draw.normal(size=(ROWS, COLUMNS))),
        draw.normal(size=(2 * ROWS, COLUMNS))[::-2],
    ][seed % 3]
    k, p = int(draw.integers(-ROWS, ROWS)), draw.integers(-ROWS, ROWS, size=3)
    return [x, draw.normal(size=COLUMNS), draw.normal(size=ROWS), k, p]


class WritingProgram:
    """A program, as its text and as a function.

    Names stand for tensors of the shape (4, 3), rows (3,), columns (4,) and numbers (). Those in
    `own` are made by the program, so that it may write to them.
    """

    def __init__(self, seed):
        self.random = random.Random(seed)
        self.count = 0
        self.names = {(ROWS, COLUMNS): ["x"], (COLUMNS,): ["y"], (ROWS,): ["w"], (): []}
        self.own = {shape: [] for shape in self.names}
        self.indices = ["k", "p[0]", "-1", "1"]
        body = [line for _ in range(self.random.randint(5, 12)) for line in self.statement(2)]
        results = [name for names in self.names.values() for name in names if name not in "xyw"]
        self.text = "\n    ".join(["def program(x, y, w, k, p):", *body, self.returned(results)])
        namespace = {"tg": tg, "np": np}
        exec(self.text, namespace)
        self.function = namespace["program"]

    def returned(self, results):
        return f"return ({', '.join(['x * 1.0', *results])},)"

    def fresh(self, shape, own=True):
        self.count += 1
        name = f"v{self.count}"
        self.added = (shape, name, own)
        return name

    def keep(self):
        shape, name, own = self.added
        self.names[shape].append(name)
        if own:
            self.own[shape].append(name)

    def pick(self, shape, own=False):
        found = (self.own if own else self.names)[shape]
        return self.random.choice(found) if found else None

    def value(self, shape):
        """Return an expression of a shape."""
        name = self.pick(shape)
        choices = [f"{name}"] * 2 if name else []
        row, column, whole = (self.pick(s) for s in ((COLUMNS,), (ROWS,), (ROWS, COLUMNS)))
        k = self.random.choice(self.indices)
        if shape == (ROWS, COLUMNS):
            choices += [f"tg.sin({whole})", f"{whole} * {row}", f"{column}[:, None] - {whole}"]
            choices += [f"tg.where({whole} > 0.0, {whole}, 0.5)", f"{whole}[::-1]"]
        elif shape == (COLUMNS,):
            choices += [f"{whole}[{k}]", f"tg.tanh({row}) + 0.5", f"tg.sum({whole}, axis=0)"]
            choices += [f"{whole}[p].sum(axis=0)", f"{row}[::-1]"]
        elif shape == (ROWS,):
            choices += [f"{whole}[:, 1]", f"{column} * 2.0", f"{whole} @ {row}", f"{whole}.T[2]"]
        else:
            choices += [f"{column}[{k}]", f"tg.sum({row})", f"{whole}[{k}, 2]", f"tg.max({whole})"]
        return self.random.choice(choices)

    def new(self):
        shape = self.random.choice(list(self.names))
        made = f"{self.fresh(shape)} = {self.value(shape)} * 1.0"
        if shape and self.random.random() < 0.3:
            made = f"{self.added[1]} = tg.zeros({shape})"
        self.keep()
        return [made]

    def view(self):
        whole = self.pick((ROWS, COLUMNS), own=True)
        if whole is None:
            return self.new()
        k = self.random.choice(["1", "-2", "k"])
        shape, text = self.random.choice([
            ((COLUMNS,), f"{whole}[{k}]"), ((ROWS,), f"{whole}[:, 1]"), ((ROWS,), f"{whole}.T[0]"),
            ((COLUMNS,), f"{whole}[1:][::-1][0]"), ((ROWS, COLUMNS), f"{whole}[::-1]"),
            ((ROWS, COLUMNS), f"{whole}.reshape(-1).reshape({ROWS}, {COLUMNS})"),
        ])  # fmt: skip
        line = f"{self.fresh(shape)} = {text}"
        self.keep()
        return [line]

    def write(self):
        shape = self.random.choice([s for s in self.names if s])
        target = self.pick(shape, own=True)
        if target is None:
            return self.new()
        k = self.random.choice(self.indices)
        if shape == (ROWS, COLUMNS):
            return [self.random.choice([
                f"{target}[{k}] = {self.value((COLUMNS,))}",
                f"{target}[:, 0] = {self.value((ROWS,))}",
                f"{target}[1:] *= {self.value((COLUMNS,))}",
                f"{target}[{target} > 0.3] = 0.25",
                f"{target}[p] = {self.value((COLUMNS,))}",
                f"{target}[[0, 2], [1, 2]] = 1.5",
                f"{target} += {self.value((ROWS, COLUMNS))}",
                f"{target}[{k}, 1] = {self.value(())}",
                f"{target}.T[1][1:3] = {self.value(())}",
            ])]  # fmt: skip
        item = self.random.choice([":2", "::2", "::-1", "0", "-1"])
        return [self.random.choice([
            f"{target} *= {self.value(shape)}", f"{target}[{item}] = {self.value(())}",
            f"{target}[{item}] += 0.5", f"{target}[...] = {self.value(shape)}",
        ])]  # fmt: skip

    def python_loop(self):
        target = self.pick((ROWS, COLUMNS), own=True)
        if target is None:
            return self.new()
        return [
            "for i in range(3):",
            f"    {target}[i] = {target}[i + 1] * {self.value((COLUMNS,))}",
        ]

    def block(self, depth):
        """Return a loop or a branch by a function."""
        shape = self.random.choice([s for s in self.names if s])
        start, step = self.value(shape), f"step{self.count}"
        kind = self.random.choice(["for", "scan", "while", "cond"])
        inner, value = self.inside(depth, shape)
        inner = [f"    {line}" for line in inner]
        after = f"tg.tanh({'s[1]' if kind == 'while' else 's'}) * 0.5 + {value}"
        name = self.fresh(shape)
        lines = {
            "for": [f"def {step}(i, s):", *inner, f"    return {after} * i",
                    f"{name} = tg.fori_loop(0, 3, {step}, {start})"],
            "scan": [f"def {step}(s, r):", *inner, f"    return {after} + r[0], tg.sum(s)",
                     f"{name}, sums = tg.scan({step}, {start}, x)", f"{name} = {name} + sums[-1]"],
            "while": [f"def {step}(s):", *inner, f"    return (s[0] + 1, {after})",
                      f"{name} = tg.while_loop(lambda s: s[0] < 2, {step}, (0, {start}))[1]"],
            "cond": [f"def {step}(s):", *inner, f"    return {after}",
                     f"{name} = tg.cond({self.value(())} > 0.0, {step}, lambda s: s, {start})"],
        }[kind]  # fmt: skip
        self.keep()
        return lines

    def inside(self, depth, shape):
        """Return statements of a step, and a value of it; what they name is not known later."""
        names = {shape: list(found) for shape, found in self.names.items()}
        own, self.own = self.own, {shape: [] for shape in self.own}
        lines = [line for _ in range(2) for line in self.statement(depth - 1)]
        value = self.value(shape)
        self.names, self.own = names, own
        return lines, value

    def statement(self, depth):
        kinds = [self.new, self.view, self.write, self.write, self.python_loop]
        if depth and self.random.random() < 0.25:
            return self.block(depth)
        return self.random.choice(kinds)()
