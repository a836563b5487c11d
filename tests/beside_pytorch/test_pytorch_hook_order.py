"""The order of hooks in random graphs is the same on both libraries, to the last leaf."""

import random

import pytest
from libraries import Programs

pytest.importorskip("torch")
program = Programs()


def ran(lib, seed, how):
    """What ran in a random graph of numbers with hooks in many places, and when leaves had what."""
    draw = random.Random(seed)
    leaves = [lib.tensor(k + 1.0, True) for k in range(draw.randint(1, 4))]
    values, names, order, noted = list(leaves), [f"leaf {k}" for k in range(len(leaves))], [], []
    for k in range(draw.randint(1, 10)):
        kind = draw.choice(["product", "sum", "sine"])
        x, y = draw.choice(values), draw.choice(values)
        values.append({"product": x * y, "sum": x + y, "sine": lib.sin(x)}[kind])
        names.append(f"result {k}")

    def note(name):
        # without hooks, leaves get their gradients at the end
        grads = [None if leaf.grad is None else leaf.grad.item() for leaf in noted]
        order.append((name, grads))

    for value, name in zip(values, names, strict=True):
        if draw.random() < 0.7:
            value.register_hook(lambda g, name=name: note(name))
        if value.is_leaf and draw.random() < 0.5:
            noted.append(value)
            value.register_post_accumulate_grad_hook(lambda leaf, name=name: note(f"{name}, after"))
    chosen = [leaf for leaf in leaves if draw.random() < 0.6] or leaves[:1]
    found = None
    if how == "grad":
        found = lib.grad(values[-1], leaves, allow_unused=True)
    elif how == "inputs":
        values[-1].backward(inputs=chosen)
    else:
        values[-1].backward(create_graph=how == "create_graph")
    grads = [leaf.grad if leaf.grad is None else leaf.grad.detach() for leaf in leaves]
    for leaf in leaves:
        leaf.grad = None
    return order, found, grads


def add(how, seeds):
    def programs(lib):
        return [ran(lib, seed, how) for seed in seeds]

    programs.__name__ = f"random_graphs_{how}_{seeds.start}"
    program(programs)


for how in ("backward", "create_graph", "grad", "inputs"):
    for start in range(0, 200, 50):
        add(how, range(start, start + 50))


@pytest.mark.parametrize("name", program)
def test_same(name):
    program.check(name)
