"""Programs that were wrong or refused, as users would write them."""

import collections
import dataclasses
import threading
import typing

import numpy as np
import pytest

import tapegrad as tg
from tests.replay.interpreted import assert_equal

RNG = np.random.default_rng(0)
X = np.array([1.0, 2.0, 3.0])
A = np.array([[4.0, 1.0, 0.0], [1.0, 3.0, 0.5], [0.0, 0.5, 2.0]])


def leaf(x=X):
    return tg.tensor(x, requires_grad=True)


def check(function, *args, rtol=1e-10):
    """Compare a function with what is recorded of it: value, gradients, tangents."""
    jitted = tg.jit(function)
    np.testing.assert_allclose(jitted(*args), function(*map(tg.tensor, args)).item(), rtol=rtol)
    numbers = tuple(range(len(args)))
    expected = tg.grad(function, numbers)(*args)
    for found in (tg.grad(jitted, numbers)(*args), tg.jit(tg.grad(function, numbers))(*args)):
        for own, other in zip(found, expected, strict=True):
            np.testing.assert_allclose(own, other, rtol=rtol, atol=1e-12)
    tensors = [leaf(x) for x in args]
    jitted(*tensors).backward()
    for tensor, other in zip(tensors, expected, strict=True):
        np.testing.assert_allclose(tensor.grad, other, rtol=rtol, atol=1e-12)
    along = tg.jvp(jitted, numbers)(*args, *args)
    np.testing.assert_allclose(along, tg.jvp(function, numbers)(*args, *args), rtol=rtol)


# -- functions that decide by values, and functions with several results ---------------------------

COMPOSITES = {
    "resize": lambda x: tg.resize(x, (2, 4)),
    "piecewise": lambda x: tg.piecewise(
        x, [x < 1.5, x > 2.5], [lambda v: -v, lambda v: v * 3, 0.5]
    ),
    "choose": lambda x: tg.choose(np.array([0, 1, 0]), [x, x * 2.0]),
    "choose_by_values": lambda x: tg.choose(tg.argmax(x), [x, x * 2.0, x * 3.0]),
    "delete": lambda x: tg.delete(x, [0]),
    "copysign": lambda x: tg.copysign(x, -x[::-1]),
}


@pytest.mark.compiled
@pytest.mark.parametrize("name", COMPOSITES)
def test_derivatives_pass_functions_that_decide_by_values(name):
    check(lambda x: tg.sum(tg.sin(COMPOSITES[name](x))) + tg.sum(x**2), X)


@pytest.mark.compiled
@pytest.mark.parametrize("rows", [2, 3])
def test_gradient_of_a_matrix_has_several_results(rows):
    def slope(x):
        across, along = tg.gradient(x)
        return tg.sum(tg.sqrt(1.0 + across**2 + along**2) * tg.exp(-x))

    check(slope, A[:rows])


@pytest.mark.compiled
def test_least_squares():
    def fit(x):
        y = tg.linalg.lstsq(x, np.arange(3.0))[0]
        return tg.sum(tg.tanh(y) ** 2 * tg.exp(-y))

    check(fit, A)


def test_gradients_that_are_zero_at_infinite_arguments():
    args = np.array([2.0]), np.array([np.inf])
    assert tg.grad(tg.jit(lambda x, y: tg.sum(tg.copysign(x, y))), 1)(*args) == [0.0]
    assert tg.grad(tg.jit(lambda x, y: tg.sum(tg.heaviside(y, x))), 1)(*args) == [0.0]


# -- writes through reshape ------------------------------------------------------------------------


def of_scan(x):
    return tg.scan(lambda s, e: (s + e, s * tg.ones(2)), 0.0, x)[1]


def of_branches(x):
    return tg.cond(x[0, 0] > 0, lambda w: w.T * 1.0, lambda w: w * 1.0, x)


IN_FORTRAN_ORDER = np.asfortranarray(A)
MADE = {
    "scan": (of_scan, X),
    "branches": (of_branches, -A),
    "other_branch": (of_branches, A),
    "loop": (lambda x: tg.vmap(lambda row: row * 2.0, loop=True)(x), A),
    "constant": (lambda x: x.T + IN_FORTRAN_ORDER, A),
    "transposed": (lambda x: x.T * 2.0, A),
    "taken": (lambda x: tg.take(x.T, np.array([1, 0]), axis=1), A),
    "repeated": (lambda x: tg.repeat(x.T, 2, axis=1), A),
    "product": (lambda x: tg.einsum("ij->ji", x) * 1.0, A),
    "columns": (lambda x: x[:, np.array([1, 0])], A),
    "recorded": (lambda x: tg.jit(lambda y: y.T * 2.0)(x), A),
}


@pytest.mark.parametrize("name", MADE)
@pytest.mark.parametrize("is_base", [False, True])
def test_writes_through_reshape_are_those_of_tensors(name, is_base):
    make, x = MADE[name]

    def program(x):
        whole = make(x)
        part = whole.reshape(-1)
        if is_base:
            whole[0] = 7.0
            return part * 1.0
        part[1] = 99.0
        part *= 2.0
        return whole * 1.0

    for given in (x, np.asfortranarray(x)):
        assert_equal(tg.jit(program)(given), program(tg.as_tensor(given)).numpy())


@pytest.mark.compiled
def test_gradient_through_a_write_to_the_outputs_of_a_scan():
    def program(x):
        outputs = of_scan(x)
        flat = tg.ravel(outputs)
        flat *= 10.0
        return tg.sum(outputs * outputs)

    check(program, X)


# -- fields of dataclasses that change -------------------------------------------------------------


@dataclasses.dataclass
class Counted:
    x: object
    count: int = 0


def stepped(s):
    return Counted(s.x * 1.5, s.count + 1)


COUNTING = {
    "scan": lambda x: tg.scan(lambda s, _: (stepped(s), None), Counted(x), length=3)[0],
    "fori_loop": lambda x: tg.fori_loop(0, 3, lambda i, s: stepped(s), Counted(x)),
    "while_loop": lambda x: tg.while_loop(lambda s: tg.sum(s.x) < 6.0, stepped, Counted(x)),
    "cond": lambda x: tg.cond(
        tg.sum(x) > 10.0, lambda x: Counted(x, 1), lambda x: Counted(x, 5), x
    ),
}


def test_attributes_that_loops_change():
    def step(i, s):
        made = Counted(s.x * 1.5)
        made.label = getattr(s, "label", 0) + 1
        return made

    def total(x):
        found = tg.fori_loop(0, 3, step, Counted(x))
        return tg.sum(found.x) * found.label

    assert tg.jit(total)(np.ones(2)) == total(tg.tensor(np.ones(2))).item() == 20.25


@pytest.mark.parametrize("name", COUNTING)
def test_fields_that_loops_and_branches_change(name):
    def total(x):
        found = COUNTING[name](x)
        return tg.sum(found.x) * found.count

    x = np.ones(2)
    assert total(tg.tensor(x)).item() > 9.0
    assert tg.jit(total)(x) == total(tg.tensor(x)).item()
    assert_equal(tg.grad(tg.jit(total))(x), tg.grad(total)(x))


def test_fields_that_a_step_with_checkpoints_changes_are_refused():
    for run in (
        lambda x: tg.scan(lambda s, _: (stepped(s), None), Counted(x), length=3, memory=1),
        lambda x: tg.checkpoint_scan(lambda i, s: stepped(s), Counted(x), 3, memory=1),
    ):
        with pytest.raises(ValueError, match="fields of a dataclass"):
            run(np.ones(2))


# -- what a recording is for -----------------------------------------------------------------------


class Pair(typing.NamedTuple):
    first: object
    second: object


@dataclasses.dataclass
class Scaled:
    """An attribute is no field."""

    w: object

    def __post_init__(self):
        self.scale = float(np.sum(np.asarray(self.w)))


@dataclasses.dataclass(frozen=True)
class Option:
    flag: object


@dataclasses.dataclass
class Group:
    parts: object


def weighted(p):
    return tg.sum(p["a"]) * 10.0 + tg.sum(p["b"])


def test_ordered_dicts_have_their_own_order():
    jitted, one, two = tg.jit(weighted), np.ones(2), np.full(2, 2.0)
    assert jitted({"b": one, "a": two}) == 42.0
    for kind in (collections.OrderedDict, dict):
        given = kind(b=one, a=two)
        assert jitted(given) == 42.0
        assert_equal(tg.grad(jitted)(given)["a"], np.full(2, 10.0))
        inside = tg.jit(lambda group: weighted(group.parts))
        assert inside(Group({"b": one, "a": two})) == inside(Group(given)) == 42.0


@pytest.mark.parametrize("kind", [dict, collections.OrderedDict, collections.defaultdict])
def test_results_have_the_type_of_the_container(kind):
    jitted = tg.jit(lambda p: p)
    for other in (dict, collections.OrderedDict):
        jitted(other(a=X))
    given = kind(list, a=X) if kind is collections.defaultdict else kind(a=X)
    assert type(jitted(given)) is kind


def test_attributes_that_are_no_fields():
    jitted = tg.jit(lambda d: d.w * d.scale)
    for factor in (1.0, 2.0, 1.0):
        assert_equal(jitted(Scaled(X * factor)), X * factor * 6.0 * factor)


@pytest.mark.parametrize(
    "values",
    [
        (Pair(1, 2), Pair(True, 2)),
        (frozenset({1}), frozenset({True})),
        (Option(1), Option(1.0)),
    ],
)
def test_static_values_that_are_equal_but_of_other_types(values):
    def names(x, value):
        return x * float(len(repr(value)))

    jitted = tg.jit(names, static_argnums=1)
    for value in values:
        assert_equal(jitted(X, value), names(X, value))


def test_functions_that_ask_for_the_mode_of_gradients():
    jitted = tg.jit(lambda x: x * 2.0 if tg.is_grad_enabled() else x * 3.0)
    assert_equal(jitted(X), X * 2.0)
    with tg.no_grad():
        assert_equal(jitted(X), X * 3.0)


def test_modes_inside():
    def enabled(x):
        with tg.enable_grad():
            return x * 2.0

    def switched(x):
        with tg.set_grad_enabled(True):
            return x * 2.0

    with tg.no_grad():
        for function in (enabled, switched):
            assert tg.jit(function)(leaf()).requires_grad
    for function in (lambda x: x * 2.0, lambda x: tg.sum(x * 2.0)):
        assert not tg.jit(tg.no_grad()(function))(leaf()).requires_grad
    some, none = tg.jit(lambda x: (x * 2.0, x.detach() * 3.0))(leaf())
    assert (some.requires_grad, none.requires_grad) == (True, False)


def test_computed_tensors_from_outside():
    box = [None]
    jitted = tg.jit(lambda y: tg.sum(box[0] * y))

    def program(x):
        box[0] = x * 2.0
        return jitted(x)

    for factor in (1.0, 3.0, 5.0):
        assert_equal(tg.grad(program)(X * factor), 4.0 * X * factor)


def test_returned_tensors_from_outside():
    c = tg.tensor(X)
    jitted = tg.jit(lambda x: (x * 2.0, c))
    assert not jitted(tg.tensor(X))[1].requires_grad
    c.requires_grad_()
    assert jitted(tg.tensor(X))[1].requires_grad


def test_numbers_beside_arrays_made_inside():
    ones = np.ones(3, np.float32)
    assert tg.jit(lambda s: s * tg.as_tensor(ones))(2.0).dtype == np.float32
    assert tg.jit(lambda x, s: tg.as_tensor(x).astype("f4") * s)(X, 2.0).dtype == np.float32


def test_static_names_of_keyword_only_parameters():
    jitted = tg.jit(lambda x, *rest, n: sum(rest, x * 0.0) * n, static_argnames="n")
    assert_equal(jitted(X, X, X, n=3), X * 6.0)


def test_static_arguments_of_a_jitted_function():
    jitted = tg.jit(tg.jit(lambda x, n: x.reshape((n, -1))), static_argnums=np.int64(1))
    assert jitted(X, 3).shape == (3, 1)


# -- values and errors -----------------------------------------------------------------------------


def test_quotients_rounded_down():
    x = np.array([1.0, -8.0, np.inf, -1.0, 1.0, 0.0, 5.0])
    y = np.array([0.1, 1 / 3, 2.0, np.inf, 0.0, 0.0, -2.0])
    with np.errstate(all="ignore"):
        assert_equal(tg.jit(lambda x, y: x // y)(x, y), x // y)


def test_powers_of_zero_with_negative_integers():
    x = np.array([0.0, 1.0, -2.0])
    power = tg.jit(lambda x, n: tg.as_tensor(x) ** n)
    for n, last in ((-1, -0.5), (np.array([-1, 2, 3]), -8.0)):
        assert_equal(power(x, n), np.array([np.inf, 1.0, last]))
    loop = tg.jit(lambda x: tg.fori_loop(0, 3, lambda i, s: s + x ** (i - 1), x * 0.0))
    assert_equal(loop(x), np.array([np.inf, 3.0, -1.5]))


@pytest.mark.compiled
def test_linear_algebra_with_results_of_loops_and_derivatives():
    def newton(a):
        def loss(x):
            return tg.sum(tg.exp(x) * a) + tg.sum((x - a) ** 2)

        z = tg.zeros(3)
        return tg.sum(z - tg.linalg.solve(tg.hessian(loss)(z), tg.grad(loss)(z)))

    def loop(a):
        matrix = tg.fori_loop(0, 3, lambda i, s: s + tg.eye(3) * a[0], tg.zeros((3, 3)))
        return tg.sum(tg.linalg.cholesky(matrix) + tg.linalg.inv(matrix))

    check(newton, X)
    check(loop, X)


def test_singular_matrices():
    for function in (
        lambda x: tg.linalg.inv(x * 0.0 + 1.0),
        lambda x: x + tg.linalg.inv(np.ones((3, 3))),
    ):
        with pytest.raises(np.linalg.LinAlgError, match=r"[Ss]ingular"):
            tg.jit(function)(A)


def test_tensors_as_indices_of_assignments():
    def program(x):
        w = x * 1.0
        w[tg.as_tensor(np.array([True, False, True]))] = 0.5
        w[tg.as_tensor(np.array([0, 2]))] += 1.0
        w[tg.argsort(tg.as_tensor(np.array([3, 1, 2])))] *= x
        return w

    assert_equal(tg.jit(program)(X), program(tg.tensor(X)).numpy())


def test_padded_numbers():
    assert tg.jit(lambda x: tg.pad(x, 1) * 2.0)(np.float64(2.0)) == 4.0


@pytest.mark.compiled
def test_second_derivatives_where_cotangents_share_memory():
    s = leaf()
    one, two = tg.jit(lambda x: (x * x, x * x * x))(s)
    (g,) = tg.autograd.grad((one + two).sum(), s, create_graph=True)
    g.sum().backward()
    assert_equal(s.grad.numpy(), 2.0 + 6.0 * X)
    s = leaf()
    (g,) = tg.autograd.grad(tg.jit(lambda x: x * x * x)(s), s, s.detach(), create_graph=True)
    g.sum().backward()
    assert_equal(s.grad.numpy(), 6.0 * X * X)
    k = tg.tensor(2.0, requires_grad=True)
    jitted = tg.jit(lambda x, k: tg.sum(x**3) * k**2)
    tg.sum(tg.hvp(lambda x: jitted(x, k))(X, X)).backward()
    assert k.grad.item() == pytest.approx(336.0)
    s, t = leaf(), leaf()
    g = tg.autograd.grad(tg.jit(lambda x, y: tg.sum(x * x * y))(s, t), (s, t), create_graph=True)
    h = tg.autograd.grad(g[0].sum() + g[1].sum(), (s, t), create_graph=True)
    third = tg.autograd.grad(h[0].sum() + h[1].sum(), (s, t))
    assert_equal([part.numpy() for part in third], [np.full(3, 4.0), np.full(3, 2.0)])


def test_inference_tensors_cannot_be_saved():
    with tg.inference_mode():
        given = tg.tensor(X)
    with pytest.raises(RuntimeError, match="Inference tensors cannot be saved"):
        tg.jit(lambda x, y: x * y)(given, leaf())
    s = leaf()
    tg.jit(lambda x, y: tg.sum(x * y))(given, s).backward()  # computed with the value
    assert_equal(s.grad.numpy(), X)


def test_first_calls_from_several_threads():
    jitted, barrier, found = tg.jit(lambda x: tg.sum(x * x)), threading.Barrier(4), {}

    def work(n):
        barrier.wait()
        found[n] = jitted(np.ones(n))

    threads = [threading.Thread(target=work, args=(n,)) for n in range(3, 7)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == {n: float(n) for n in range(3, 7)}


# -- arguments in other forms ----------------------------------------------------------------------

FORMS = {
    "transpose by a number": lambda x: np.transpose(x, -1) * x,
    "method transpose by a number": lambda x: x.transpose(0) * x,
    "index by a range": lambda x: x[range(2)] * 2.0,
    "index by a tuple": lambda x: (x[:, None] * 2.0)[(0, 2), ..., (0,)],
    "assignment by a range": lambda x: tg.concatenate((x, x))[range(1, 3)],
}


@pytest.mark.compiled
@pytest.mark.parametrize("name", FORMS)
def test_arguments_in_other_forms(name):
    f, x = FORMS[name], np.array([0.5, -1.5, 2.0])
    expected = (
        f(x) if name.startswith(("transpose", "method", "index by")) else f(tg.tensor(x)).numpy()
    )
    np.testing.assert_array_equal(tg.jit(f)(x), expected)
    np.testing.assert_array_equal(tg.vmap(f)(x[None])[0], expected)

    def loss(x):
        return tg.sum(f(x) ** 2)

    slope = tg.grad(loss)(x)
    np.testing.assert_allclose(tg.grad(tg.jit(loss))(x), slope)
    np.testing.assert_allclose(tg.vmap(tg.grad(loss))(x[None])[0], slope)
    product = tg.hvp(loss)(x, x)
    np.testing.assert_allclose(tg.jit(tg.hvp(loss))(x, x), product)


def test_products_of_empty_items():
    found = tg.vmap(lambda a, b: a @ b)(np.ones((3, 0)), np.ones((3, 0, 3)))
    np.testing.assert_array_equal(found, np.zeros((3, 3)))
