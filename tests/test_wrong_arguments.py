"""Arguments of a wrong kind are refused by the call that is given them, and named by it."""

import numpy as np
import pytest
from leaves import leaf

import tapegrad as tg

X = np.ones(2)


def f(v, a=1.0):
    return tg.sum(v * v) * a


def compiled(v, a):
    return (v * v).sum() * a


TRANSFORMS = ["grad", "value_and_grad", "jacobian", "jacrev", "jacfwd", "hessian", "hvp", "jvp"]
OF_A_FUNCTION = [*TRANSFORMS, "vmap", "jit", "vjp", "linearize"]
NO_POSITIONS = ["a", 0.0, None, [0.0], ("a",), True, {0}, (0, "a")]


@pytest.mark.parametrize("function", [f, tg.njit(compiled)], ids=["tensors", "compiled"])
@pytest.mark.parametrize("argnums", NO_POSITIONS, ids=str)
@pytest.mark.parametrize("name", TRANSFORMS)
def test_argnums(name, argnums, function):
    with pytest.raises(TypeError, match=rf"^{name}: argnums is the number of an argument.* got "):
        getattr(tg, name)(function, argnums)


@pytest.mark.parametrize("argnums", [np.int64(0), np.int32(0), 0])
@pytest.mark.parametrize("several", [False, True])
def test_integers_of_numpy_are_positions(argnums, several):
    found = tg.grad(f, [argnums] if several else argnums)(X)
    assert (found[0] if several else found).tolist() == [2.0, 2.0]


def test_ranges_are_positions():
    assert [g.tolist() for g in tg.grad(f, range(2))(X, 1.0)] == [[2.0, 2.0], 2.0]


@pytest.mark.parametrize("function", [f, tg.njit(compiled)], ids=["tensors", "compiled"])
@pytest.mark.parametrize("out", ["a", X, None, 1.0], ids=["str", "array", "None", "float"])
@pytest.mark.parametrize("name", ["grad", "value_and_grad"])
def test_out_of_transforms(name, out, function):
    with pytest.raises(TypeError, match=rf"^{name}: out is True or False, got .*out=array"):
        getattr(tg, name)(function, out=out)


@pytest.mark.parametrize("name", ["sin", "add", "maximum", "hypot"])
@pytest.mark.parametrize("x", [X, leaf([1.0, 2.0])], ids=["array", "tensor"])
def test_out_of_ops(name, x):
    args = (x,) if name == "sin" else (x, x)
    with pytest.raises(TypeError, match=f"^{name}: `out` is an array or a tensor, got str"):
        getattr(tg, name)(*args, out="a")


@pytest.mark.parametrize("name", OF_A_FUNCTION)
def test_no_function(name):
    with pytest.raises(TypeError, match=f"^{name}: expected a function, got float"):
        getattr(tg, name)(f(X).item())


@pytest.mark.parametrize(
    ("static_argnums", "kind", "text"),
    [
        (7, ValueError, r"7 is out of range for .* \['v', 'a'\]"),
        (-3, ValueError, "-3 is out of range"),
        ((0, 2), ValueError, "2 is out of range"),
        ("a", TypeError, "got 'a'; names are given as static_argnames"),
        (0.0, TypeError, "got 0.0"),
        (None, TypeError, "got None"),
        ([0.0], TypeError, r"got \[0.0\]"),
    ],
)
def test_static_argnums(static_argnums, kind, text):
    with pytest.raises(kind, match=f"^jit: static_argnums .*{text}"):
        tg.jit(f, static_argnums=static_argnums)


def test_static_argnums_among_further_arguments():
    jitted = tg.jit(lambda x, *more: x * more[1], static_argnums=2)
    assert jitted(2.0, "unused", 3.0) == 6.0


JOINING = ["stack", "concatenate", "vstack", "hstack", "dstack", "column_stack", "block"]


@pytest.mark.parametrize("made", [lambda xs: (x for x in xs), iter, lambda xs: map(tg.sin, xs)])
@pytest.mark.parametrize("name", [*JOINING, "linalg.multi_dot", "einsum", "sum", "sin", "tensor"])
def test_iterators(name, made):
    function = tg
    for part in name.split("."):
        function = getattr(function, part)
    given = made([leaf([1.0, 2.0]), leaf([3.0, 4.0])])
    args = ("i,i", given, X) if name == "einsum" else (given,)
    with pytest.raises(TypeError, match=r"is no array; make a list of its items: list\(\.\.\.\)"):
        function(*args)


@pytest.mark.parametrize("name", JOINING)
def test_iterators_are_refused_by_name(name):
    with pytest.raises(TypeError, match=f"^{name}: a generator is no array"):
        getattr(tg, name)(x for x in [X, X])


REGISTERED = {
    "register_hook": lambda hook: leaf(1.0).register_hook(hook),
    "register_post_accumulate_grad_hook": lambda hook: leaf(1.0).register_post_accumulate_grad_hook(
        hook
    ),
    "Node.register_hook": lambda hook: leaf(1.0).exp().grad_fn.register_hook(hook),
    "Node.register_prehook": lambda hook: leaf(1.0).exp().grad_fn.register_prehook(hook),
    "register_multi_grad_hook": lambda hook: tg.autograd.graph.register_multi_grad_hook(
        [leaf(1.0)], hook
    ),
    "saved_tensors_hooks": lambda hook: tg.autograd.graph.saved_tensors_hooks(hook, hook),
    "queue_callback": tg.autograd.Variable._execution_engine.queue_callback,
}


@pytest.mark.parametrize("name", REGISTERED)
def test_hooks(name):
    with pytest.raises(TypeError, match=f"^{name}: a hook is a function, got str"):
        REGISTERED[name]("a")


@pytest.mark.parametrize("name", ["grad", "value_and_grad", "jacobian", "jacfwd", "hessian"])
@pytest.mark.parametrize("result", [lambda x: tg.sum(x), lambda x: (tg.sum(x),) * 3])
def test_has_aux_without_a_pair(name, result):
    with pytest.raises(TypeError, match="with has_aux, the function returns a pair"):
        getattr(tg, name)(result, has_aux=True)(X)
