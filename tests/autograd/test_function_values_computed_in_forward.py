"""Values that forward computes and keeps have no history: derivatives through them are noticed."""

import warnings

import numpy as np
import pytest
from functions import make
from leaves import leaf

import tapegrad as tg
from tapegrad.autograd import forward_ad, grad

TEXT = "goes through {}, which forward computed"


def saved(ctx, y):
    ctx.save_for_backward(y)


def attribute(ctx, y):
    ctx.y = y


def in_list(ctx, y):
    ctx.kept = ["y", y]


def in_dict(ctx, y):
    ctx.kept = {"y": [y]}


def in_tuple(ctx, y):
    ctx.kept = (y, 3)


# how a value is kept, how backward gets it again, and what the warning calls it
PLACES = {
    "saved": (saved, lambda ctx: ctx.saved_tensors[0], "value 0 given to ctx.save_for_backward"),
    "attribute": (attribute, lambda ctx: ctx.y, "ctx.y"),
    "list": (in_list, lambda ctx: ctx.kept[1], "ctx.kept"),
    "dict": (in_dict, lambda ctx: ctx.kept["y"][0], "ctx.kept"),
    "tuple": (in_tuple, lambda ctx: ctx.kept[0], "ctx.kept"),
}
places = pytest.mark.parametrize("place", PLACES)


def cube(place, compute=lambda x: x * x, with_setup=False):
    """A Function x^3 whose backward reads the square that forward computed."""
    keep, read, _ = PLACES[place]

    def forward(ctx, x):
        y = compute(x)
        keep(ctx, y)
        return x * x * x

    def backward(ctx, g):
        return 3.0 * read(ctx) * g

    def setup(ctx, inputs, output):
        keep(ctx, compute(*inputs))

    if with_setup:
        return make(lambda x: x * x * x, backward, setup, name="Cubic").apply
    return make(forward, backward, name="Cubic").apply


def second_by_grad(f, x):
    x = leaf(x)
    (first,) = grad(f(x), x, create_graph=True)
    return grad(first, x, allow_unused=True)


def second_by_functional(f, x):
    return tg.autograd.functional.hessian(f, leaf(x))


def third(f, x):
    return tg.grad(tg.grad(tg.grad(f)))(x)


SECOND = {
    "grad": second_by_grad,
    "functional": second_by_functional,
    "transforms": lambda f, x: tg.grad(tg.grad(f))(x),
    "hessian": lambda f, x: tg.hessian(f)(x),
    "hvp": lambda f, x: tg.hvp(f)(x, 1.0),
    "jvp of grad": lambda f, x: tg.jvp(tg.grad(f))(x, 1.0),
    "vjp of grad": lambda f, x: tg.vjp(tg.grad(f), x)[1](1.0),
    "third": third,
    "jit": lambda f, x: tg.grad(tg.grad(tg.jit(f)))(x),
}


@places
@pytest.mark.parametrize("second", SECOND)
def test_second_derivatives_warn(second, place):
    f = cube(place)
    with pytest.warns(tg.DetachedWarning) as caught:
        SECOND[second](lambda x: f(x) + x * x, 2.0)
    texts = {str(w.message) for w in caught}
    assert any("Cubic: a derivative of its backward" in text for text in texts)
    assert any(TEXT.format(PLACES[place][2]) in text for text in texts)
    assert {w.filename for w in caught} == {__file__}


@places
def test_first_derivatives_do_not(place):
    x = leaf(2.0)
    f = cube(place)
    assert grad(f(x), x)[0].item() == 12.0
    (first,) = grad(f(x), x, create_graph=True)
    assert first.item() == 12.0
    assert tg.grad(f)(2.0) == 12.0
    assert tg.jvp(f)(2.0, 1.0)[1] == 12.0


@places
def test_setup_context(place):
    f = cube(place, with_setup=True)
    with pytest.warns(tg.DetachedWarning, match=TEXT.format(PLACES[place][2])):
        SECOND["hessian"](f, 2.0)


@places
@pytest.mark.parametrize(
    "compute",
    [lambda x: x.detach() ** 2, lambda x: tg.as_tensor(x.detach().numpy() ** 2), lambda x: x.T],
    ids=["detached", "NumPy", "view"],
)
def test_however_it_was_computed(compute, place):
    f = cube(place, compute)
    with pytest.warns(tg.DetachedWarning, match="which forward computed"):
        tg.hessian(lambda x: tg.sum(f(x)))(np.ones(2))


def further_output(ctx, x):
    y = x * x
    ctx.save_for_backward(x, y)
    return x * y, y


def of_further_output(ctx, g, h):
    x, y = ctx.saved_tensors
    return 3.0 * y * g + 2.0 * x * h


def save_input(ctx, x):
    ctx.save_for_backward(x)
    return x * x * x


WAYS_OUT = {
    "a further output": lambda x: make(further_output, of_further_output).apply(x)[0],
    "computed again": make(save_input, lambda ctx, g: 3 * ctx.saved_tensors[0] ** 2 * g).apply,
}


@pytest.mark.parametrize("second", [name for name in SECOND if name != "third"])
@pytest.mark.parametrize("way", WAYS_OUT)
def test_ways_out(way, second):
    found = SECOND[second](WAYS_OUT[way], 2.0)
    found = found[-1] if isinstance(found, tuple) else found
    assert float(found if isinstance(found, float) else tg.as_tensor(found).item()) == 12.0


def mask_as_bool(ctx, x):
    ctx.save_for_backward(x > 0)
    return tg.maximum(x, 0.0)


def mask_as_array(ctx, x):
    ctx.mask = (x > 0).numpy().astype(float)
    return tg.maximum(x, 0.0)


CONSTANTS = {
    "a mask": make(mask_as_bool, lambda ctx, g: g * ctx.saved_tensors[0]).apply,
    "an array": make(mask_as_array, lambda ctx, g: g * ctx.mask).apply,
}


@pytest.mark.parametrize("f", CONSTANTS.values(), ids=CONSTANTS)
def test_constants_that_are_no_float_tensors(f):
    found = tg.hessian(lambda x: tg.sum(f(x) ** 3))(np.array([2.0, -1.0]))
    assert found.tolist() == [[12.0, 0.0], [0.0, 0.0]]


@places
@pytest.mark.parametrize(
    "show", [lambda w: w, lambda w: w.T, lambda w: w[0]], ids=["it", "T", "[]"]
)
def test_arguments_without_history_are_constants(show, place):
    keep, read, _ = PLACES[place]

    def forward(ctx, x, w):
        keep(ctx, show(w))
        return tg.sum(show(w) @ x)

    f = make(forward, lambda ctx, g: (g * tg.sum(tg.atleast_2d(read(ctx)), 0), None)).apply
    w = tg.tensor([[1.0, 2.0], [3.0, 4.0]])
    rate = np.atleast_2d(show(w).numpy()).sum(0)
    found = tg.hessian(lambda x: f(x, w) ** 2)(np.ones(2))
    np.testing.assert_allclose(found, 2 * np.outer(rate, rate))


def test_a_derivative_that_is_zero_is_right():
    f = cube("saved")
    x, y = leaf(2.0), leaf(3.0)
    (first,) = grad(f(x) * y, x, create_graph=True)
    assert grad(first, y)[0].item() == 12.0


@places
def test_lists_and_dicts_stay_the_users(place):
    keep, read, _ = PLACES[place]
    contexts = []

    def forward(ctx, x):
        keep(ctx, x * x)
        contexts.append((ctx, read(ctx), dict(ctx.__dict__)))
        return x * x * x

    def backward(ctx, g):
        ctx.count = ctx.__dict__.get("count", 0) + 1
        if isinstance(ctx.__dict__.get("kept"), list):
            ctx.kept.append("more")
        return 3.0 * read(ctx) * g

    x = leaf(2.0)
    grad(make(forward, backward).apply(x), x, create_graph=True)
    ctx, y, before = contexts[0]
    assert ctx.count == 1
    if place != "saved":
        assert read(ctx) is y
    if place in ("list", "dict"):
        assert ctx.kept is before["kept"]
    if place == "list":
        assert ctx.kept == ["y", y, "more"]


def forward_for_jvp(ctx, x):
    y = x * x
    ctx.save_for_backward(x)
    ctx.save_for_forward(y)
    return x * y


def attribute_for_jvp(ctx, x):
    ctx.save_for_backward(x)
    ctx.y = x * x
    return x * ctx.y


@pytest.mark.parametrize(
    ("forward", "read", "what"),
    [
        (
            forward_for_jvp,
            lambda ctx: ctx.saved_tensors[0],
            "value 0 given to ctx.save_for_forward",
        ),
        (attribute_for_jvp, lambda ctx: ctx.y, r"ctx\.y"),
    ],
    ids=["saved", "attribute"],
)
class TestTangents:
    """The same for what jvp reads, and in a dual level."""

    def test_derivatives_of_tangents(self, forward, read, what):
        f = make(
            forward,
            lambda ctx, g: 3 * ctx.saved_tensors[0] ** 2 * g,
            name="Cubic",
            jvp=lambda ctx, t: 3.0 * read(ctx) * t,
        ).apply
        assert tg.jvp(f)(2.0, 1.0)[1] == 12.0
        for second in (
            lambda: tg.grad(lambda x: tg.jvp(f)(x, tg.tensor(1.0))[1])(2.0),
            lambda: tg.jvp(lambda x: tg.jvp(f)(x, tg.tensor(1.0))[1])(2.0, 1.0),
        ):
            with pytest.warns(tg.DetachedWarning, match=rf"of its jvp goes through {what}"):
                second()

    def test_in_a_level(self, forward, read, what):
        f = make(
            forward,
            lambda ctx, g: 3 * ctx.saved_tensors[0] ** 2 * g,
            jvp=lambda ctx, t: 3.0 * read(ctx) * t,
        ).apply
        with forward_ad.dual_level():
            dual = forward_ad.make_dual(tg.tensor(2.0), tg.tensor(1.0))
            assert forward_ad.unpack_dual(f(dual)).tangent.item() == 12.0


@places
def test_backward_in_a_level(place):
    keep, read, what = PLACES[place]

    def forward(ctx, x):
        ctx.save_for_forward(x)
        keep(ctx, x * x)
        return x * x * x

    f = make(
        forward,
        lambda ctx, g: 3.0 * read(ctx) * g,
        jvp=lambda ctx, t: 3 * ctx.saved_tensors[0] ** 2 * t,
    ).apply
    with forward_ad.dual_level():
        dual = forward_ad.make_dual(tg.tensor(2.0), tg.tensor(1.0)).requires_grad_()
        y = f(dual)
        with pytest.warns(tg.DetachedWarning, match=TEXT.format(what)):
            grad(y, dual)


def test_saved_tensors_hooks():
    with tg.autograd.graph.saved_tensors_hooks(lambda t: t, lambda t: t):
        x = leaf(2.0)
        y = cube("saved")(x)
    (first,) = grad(y, x, create_graph=True)
    with pytest.warns(tg.DetachedWarning, match="which forward computed"):
        grad(first, x, allow_unused=True)


def test_in_vmap():
    class Cubic(tg.Function):
        generate_vmap_rule = True

        @staticmethod
        def forward(ctx, x):
            y = x * x
            ctx.save_for_backward(y)
            return x * y

        @staticmethod
        def backward(ctx, g):
            (y,) = ctx.saved_tensors
            return 3.0 * y * g

    x = np.array([1.0, 2.0])
    assert tg.vmap(tg.grad(Cubic.apply))(x).tolist() == [3.0, 12.0]
    with pytest.warns(tg.DetachedWarning, match="which forward computed"):
        tg.vmap(tg.grad(tg.grad(Cubic.apply)))(x)


def test_once_per_line():
    f = cube("saved")
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("default")
        for _ in range(3):
            tg.hessian(lambda x: f(x) + x)(2.0)
    assert len(caught) == 1
