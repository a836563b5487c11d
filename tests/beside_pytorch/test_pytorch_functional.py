"""`autograd.functional` beside PyTorch's: values, structures, histories and texts."""

import itertools

import pytest
from libraries import Programs

pytest.importorskip("torch")
program = Programs()

FUNCTIONS = {
    "cube": (lambda lib, x: (x**3).sum(), 1),
    "linear": (lambda lib, x: 3 * x.sum(), 1),
    "square": (lambda lib, x: (x * x).sum(), 1),
    "vector": (lambda lib, x: x * x, 1),
    "matrix": (lambda lib, x: x.reshape(2, 1) * x, 1),
    "constant": (lambda lib, x: lib.ones(2), 1),
    "itself": (lambda lib, x: x, 1),
    "one element of two axes": (lambda lib, x: (x**3).sum().reshape(1, 1), 1),
    "product": (lambda lib, x, y: (x * x * y).sum(), 2),
    "of the first": (lambda lib, x, y: (x**3).sum(), 2),
    "of the second": (lambda lib, x, y: y * y, 2),
    "two outputs": (lambda lib, x, y: (x * y, (y * y).sum()), 2),
    "one of two outputs": (lambda lib, x, y: (x * x, y.detach() * 1), 2),
    "the same output twice": (lambda lib, x: (x * x,) * 2, 1),
    "a number": (lambda lib, x: 2.0, 1),
    "a list": (lambda lib, x: [x], 1),
    "a tensor and a number": (lambda lib, x: (x, 2.0), 1),
}
OUTPUTS = {"matrix": (2, 2), "one element of two axes": (1, 1)}
NUMBERS = ("cube", "linear", "square", "product", "of the first")
OPTIONS = [
    {},
    {"strict": True},
    {"create_graph": True},
    {"create_graph": True, "strict": True},
]


def given(lib, count, history=False):
    """Inputs, and a vector for each."""
    inputs = tuple(lib.tensor([[1.0, 2.0], [3.0, 4.0]][k], history) for k in range(count))
    vectors = tuple(lib.tensor([[1.0, -1.0], [0.5, 2.0]][k]) for k in range(count))
    return (inputs, vectors) if count > 1 else (inputs[0], vectors[0])


def outcome(lib, action):
    """What a call returns, or what it raises."""
    try:
        return action()
    except Exception as error:
        return type(error).__name__, str(error).replace("isonly", "is only")


def cotangents(lib, name):
    ones = {
        "two outputs": lambda: (lib.tensor([1.0, 2.0]), lib.tensor(3.0)),
        "one of two outputs": lambda: (lib.tensor([1.0, 2.0]), lib.tensor([3.0, 1.0])),
        "the same output twice": lambda: (lib.tensor([1.0, 2.0]), lib.tensor([3.0, 1.0])),
        "matrix": lambda: lib.tensor([[1.0, 2.0], [3.0, 4.0]]),
        "one element of two axes": lambda: lib.tensor([[2.0]]),
    }
    if name in NUMBERS:
        return lib.tensor(2.0)
    return ones.get(name, lambda: lib.tensor([1.0, 2.0]))()


def enter(kind, name, options, history):
    f, count = FUNCTIONS[name]

    def run(lib):
        inputs, vectors = given(lib, count, history)
        v = {"vjp": cotangents, "jacobian": None, "hessian": None}.get(kind, lambda *_: vectors)
        more = () if v is None else (v(lib, name),)
        call = getattr(lib.functional, kind)
        found = outcome(lib, lambda: call(lambda *a: f(lib, *a), inputs, *more, **options))
        # PyTorch's blocks of zeros have a history there, which leads nowhere
        return flat(found) if options.get("vectorize") else found

    shown = " ".join(key for key, value in options.items() if value is True)
    run.__name__ = f"{kind} of {name} {shown} {'with history' if history else ''}".strip()
    program(run)


for kind, name, options in itertools.product(
    ("vjp", "jvp", "jacobian", "hessian", "vhp", "hvp"), FUNCTIONS, OPTIONS
):
    enter(kind, name, options, False)
    if options.get("create_graph"):
        enter(kind, name, options, True)
for kind, name in itertools.product(("jacobian", "hessian"), FUNCTIONS):
    enter(kind, name, {"vectorize": True}, False)
    enter(kind, name, {"vectorize": True, "create_graph": True}, True)
    enter(kind, name, {"vectorize": True, "strict": True}, False)


def columns(kind, option):
    def forward_mode(lib):
        found = []
        for name in ("cube", "vector", "matrix", "product", "two outputs", "of the first"):
            f, count = FUNCTIONS[name]
            inputs, _ = given(lib, count)

            def call(f=f, inputs=inputs):
                return getattr(lib.functional, kind)(
                    lambda *a: f(lib, *a), inputs, vectorize=True, **{option: "forward-mode"}
                )

            found.append(flat(outcome(lib, call)))
        return found

    forward_mode.__name__ = f"forward mode of {kind}"
    return forward_mode


def flat(found):
    """The blocks without structure and history: in forward mode PyTorch returns them in lists."""
    if isinstance(found, (list, tuple)):
        return [part for item in found for part in flat(item)]
    return [found if isinstance(found, str) else found.detach()]


program(columns("jacobian", "strategy"))
program(columns("hessian", "outer_jacobian_strategy"))


@program
def arguments_that_are_refused(lib):
    f = lib.functional
    x, y = given(lib, 2)[0]
    square = lambda t: t * t  # noqa: E731
    calls = [
        lambda: f.vjp(square, [1.0]),
        lambda: f.jvp(square, (x, 2.0)),
        lambda: f.jacobian(square, 2.0),
        lambda: f.hessian(square, [x]),
        lambda: f.vjp(square, x),
        lambda: f.jvp(square, x),
        lambda: f.hvp(lambda t: t.sum(), x),
        lambda: f.vhp(lambda t: t.sum(), x),
        lambda: f.vjp(square, x, 1.0),
        lambda: f.vjp(square, x, lib.ones(3)),
        lambda: f.vjp(square, x, (x, x)),
        lambda: f.vjp(lambda t: (t, t), x, (x,)),
        lambda: f.vjp(lambda t: (t, t), x, (x, lib.ones(3))),
        lambda: f.jvp(lambda a, b: a * b, (x, y), (x,)),
        lambda: f.jacobian(square, x, strategy="sideways"),
        lambda: f.jacobian(square, x, strategy="forward-mode"),
        lambda: f.jacobian(square, x, True, strategy="forward-mode", vectorize=True),
        lambda: f.hessian(square, x, outer_jacobian_strategy="sideways"),
        lambda: f.hessian(lambda t: t.sum(), x, outer_jacobian_strategy="forward-mode"),
    ]
    return [outcome(lib, call) for call in calls]


@program
def numbers_need_no_vector(lib):
    f = lib.functional
    x = lib.tensor(2.0)
    cube = lambda t: t**3  # noqa: E731
    return f.vjp(cube, x), f.jvp(cube, x), f.vhp(cube, x), f.hvp(cube, x)


@program
def without_recording_around_it(lib):
    x, v = given(lib, 1, True)
    cube = FUNCTIONS["cube"][0]
    with lib.no_grad():
        f = lib.functional
        return (
            f.vjp(lambda t: cube(lib, t), x),
            f.jvp(lambda t: t * t, x, v),
            f.jacobian(lambda t: t * t, x),
            f.hessian(lambda t: cube(lib, t), x, create_graph=True),
            f.hvp(lambda t: cube(lib, t), x, v),
        )


@program
def differentiated_again(lib):
    x, v = given(lib, 1, True)
    f = lib.functional
    cube = lambda t: (t**3).sum()  # noqa: E731
    found = [
        f.vjp(cube, x, create_graph=True)[1],
        f.jvp(lambda t: t**3, x, v, create_graph=True)[1],
        f.jacobian(lambda t: t**3, x, create_graph=True),
        f.jacobian(lambda t: t**3, x, create_graph=True, vectorize=True),
        f.hessian(cube, x, create_graph=True),
        f.hvp(cube, x, v, create_graph=True)[1],
        f.vhp(cube, x, v, create_graph=True)[1],
    ]
    return [lib.grad(t.sum(), x) for t in found]


@program
def with_respect_to_the_vector(lib):
    x, v = given(lib, 1)
    v.requires_grad_()
    f = lib.functional
    cube = lambda t: (t**3).sum()  # noqa: E731
    found = [
        f.vjp(lambda t: t**3, x, v, create_graph=True)[1],
        f.jvp(lambda t: t**3, x, v, create_graph=True)[1],
        f.hvp(cube, x, v, create_graph=True)[1],
        f.vhp(cube, x, v, create_graph=True)[1],
    ]
    return [lib.grad(t.sum(), v) for t in found]


@program
def complex_numbers(lib):
    z = lib.tensor([1 + 1j, 2.0 - 0.5j], dtype="complex128")
    v = lib.tensor([1j, 0.5], dtype="complex128")
    f = lib.functional
    square = lambda t: t * t  # noqa: E731
    return (
        f.vjp(square, z, v),
        f.jvp(square, z, v),
        f.jacobian(square, z, vectorize=True),
        f.jacobian(square, z, vectorize=True, strategy="forward-mode"),
        f.jacobian(lambda t: (t * t).abs(), z),
    )


@pytest.mark.parametrize("name", program)
def test_same(name):
    program.check(name)
