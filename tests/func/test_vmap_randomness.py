"""Random numbers inside of `vmap`: an error, different ones for the items, or the same."""

import numpy as np
import pytest

import tapegrad as tg

ERROR = (
    "vmap: called random operation while in randomness error mode. Please either use the 'same' or "
    "'different' randomness flags on vmap or perform the randomness operation out of vmap"
)
X = np.linspace(0.5, 2.0, 8).reshape(4, 2)

# functions of an item of two elements, and a generator
INDEPENDENT = {
    "normal": lambda x, rng: x + rng.normal(size=2),
    "scaled": lambda x, rng: rng.normal(x, x),
    "uniform": lambda x, rng: rng.uniform(-x, x, size=(3, 2)),
    "random": lambda x, rng: rng.random(),
    "gamma": lambda x, rng: x * rng.gamma([0.5, 3.0]),
    "multivariate_normal": lambda x, rng: rng.multivariate_normal(x, x[0] * np.eye(2)),
    "choice": lambda x, rng: rng.choice(x, size=3),
    "choice_once": lambda x, rng: rng.choice(5, size=3, replace=False),
    "permutation": lambda x, rng: rng.permutation(x),
    "order": lambda x, rng: rng.permutation(6),
    "integers": lambda x, rng: rng.integers(0, 100, size=4),
    "bernoulli": lambda x, rng: rng.bernoulli(0.4 * x, size=(5, 2)),
}
# of which the numbers drawn depend on the item
DEPENDENT = {
    "gamma": lambda x, rng: rng.gamma(x, 2.0),
    "gammas": lambda x, rng: rng.gamma(x, [[1.0], [2.0], [3.0]]),
    "beta": lambda x, rng: rng.beta(x, 2.0, size=(3, 2)),
    "dirichlet": lambda x, rng: rng.dirichlet(x, size=3),
    "student_t": lambda x, rng: rng.student_t(x[0], x),
    "poisson": lambda x, rng: rng.poisson(4.0 * x),
    "binomial": lambda x, rng: rng.binomial(7, 0.4 * x),
    "integers": lambda x, rng: rng.integers(tg.astype(x, np.int64) + 5),
    "choice": lambda x, rng: rng.choice(2, size=3, p=x / x.sum()),
}


def call(f, randomness, x=X, seed=1, **options):
    rng = tg.random.default_rng(seed)
    return tg.vmap(lambda item: f(item, rng), randomness=randomness, **options)(x)


@pytest.mark.parametrize("f", [*INDEPENDENT.values(), *DEPENDENT.values()])
def test_an_error_by_default(f):
    rng = tg.random.default_rng(1)
    with pytest.raises(RuntimeError) as info:
        tg.vmap(lambda x: f(x, rng))(X)
    assert str(info.value) == ERROR
    assert type(info.value) is RuntimeError


@pytest.mark.parametrize("name", INDEPENDENT)
def test_the_same_for_all_items(name):
    """What each item gets alone from the same seed."""
    f = INDEPENDENT[name]
    found = call(f, "same")
    alone = [f(tg.tensor(x), tg.random.default_rng(1)) for x in X]
    np.testing.assert_allclose(found, np.stack([z.numpy() for z in alone]), rtol=1e-14)


@pytest.mark.parametrize("name", DEPENDENT)
def test_the_same_numbers_of_different_laws_are_refused(name):
    with pytest.raises(RuntimeError, match=f"{name[:5]}.* randomness='same' with a batched para"):
        call(DEPENDENT[name], "same")


@pytest.mark.parametrize("f", [*INDEPENDENT.values(), *DEPENDENT.values()])
def test_different_for_the_items(f):
    x = np.repeat(X[:1], 40, axis=0)
    found = call(f, "different", x)
    assert found.shape == (40, *call(f, "different", X[:1]).shape[1:])
    assert len(np.unique(found.reshape(40, -1), axis=0)) > 1
    # one item is what it is alone
    alone = f(tg.tensor(X[0]), tg.random.default_rng(1))
    single = call(f, "different", X[:1])
    assert single.dtype == alone.dtype
    if f is not INDEPENDENT["order"] and f is not INDEPENDENT["permutation"]:
        np.testing.assert_allclose(single[0], alone, rtol=1e-14)


def test_different_items_are_rows_of_one_draw():
    found = call(INDEPENDENT["normal"], "different")
    np.testing.assert_array_equal(found, X + np.random.default_rng(1).normal(size=(4, 2)))
    found = call(DEPENDENT["gamma"], "different")
    np.testing.assert_allclose(found, np.random.default_rng(1).gamma(X, 2.0), rtol=1e-15)


def test_moments_of_different_items():
    a = np.full(4000, 3.0)
    found = call(lambda a, rng: rng.gamma(a), "different", a)
    assert abs(found.mean() - 3.0) < 0.1 and abs(found.var() - 3.0) < 0.3
    found = call(lambda p, rng: rng.permutation(3)[0], "different", a)
    np.testing.assert_allclose(np.bincount(found) / 4000, 1.0 / 3.0, atol=0.03)


@pytest.mark.parametrize("axes", [0, 1, -1])
def test_axes(axes):
    x = np.moveaxis(X, 0, axes)
    found = call(INDEPENDENT["normal"], "same", x, in_dims=axes, out_dims=axes)
    np.testing.assert_array_equal(found, np.moveaxis(call(INDEPENDENT["normal"], "same"), 0, axes))


def test_shared_arguments():
    rng = tg.random.default_rng(1)
    found = tg.vmap(lambda a, x: rng.gamma(a) + x, (None, 0), randomness="same")(2.0, X)
    np.testing.assert_allclose(found, np.random.default_rng(1).gamma(2.0) + X, rtol=1e-15)
    rng = tg.random.default_rng(1)
    found = tg.vmap(lambda x: rng.normal(), 0, None, randomness="same")(X)
    assert found == np.random.default_rng(1).normal()


NESTED = {
    ("different", "different"): (4, 3),
    ("different", "same"): (4, 1),
    ("same", "different"): (1, 3),
    ("same", "same"): (1, 1),
}


@pytest.mark.parametrize(("outer", "inner"), NESTED)
def test_each_level_has_its_own_flag(outer, inner):
    rng = tg.random.default_rng(1)
    x = np.arange(12.0).reshape(4, 3)

    def row(items):
        return tg.vmap(lambda item: item + rng.normal(), randomness=inner)(items)

    found = tg.vmap(row, randomness=outer)(x)
    noise = np.random.default_rng(1).normal(size=NESTED[outer, inner])
    np.testing.assert_array_equal(found, x + noise)


def test_parameters_of_either_level():
    x, y = np.array([1.0, 5.0]), np.array([0.5, 3.0, 40.0])
    for f, shape in [
        (lambda a, b, rng: rng.gamma(a), np.broadcast_to(x[:, None], (2, 3))),
        (lambda a, b, rng: rng.gamma(b), np.broadcast_to(y, (2, 3))),
        (lambda a, b, rng: rng.gamma(a * b), x[:, None] * y),
    ]:
        rng = tg.random.default_rng(1)

        def inner(a):
            return tg.vmap(lambda b: f(a, b, rng), randomness="different")(y)

        found = tg.vmap(inner, randomness="different")(x)
        expected = np.random.default_rng(1).gamma(shape)
        np.testing.assert_allclose(np.asarray(found), expected, rtol=1e-15)
    rng = tg.random.default_rng(1)
    found = tg.vmap(
        lambda a: tg.vmap(lambda b: b + rng.gamma(a), randomness="same")(y), randomness="different"
    )(x)
    np.testing.assert_allclose(found, y + np.random.default_rng(1).gamma(x)[:, None], rtol=1e-15)


@pytest.mark.parametrize(("outer", "inner"), [("error", "same"), ("different", "error")])
def test_an_error_at_one_level(outer, inner):
    rng = tg.random.default_rng(1)
    with pytest.raises(RuntimeError, match="randomness error mode"):
        tg.vmap(
            lambda row: tg.vmap(lambda x: x + rng.normal(), randomness=inner)(row), randomness=outer
        )(X)


@pytest.mark.parametrize("size", [1, 2, 3, 4])
def test_chunks(size):
    def f(x, rng):
        return x + rng.normal(size=2) * rng.gamma(2.0) + tg.random.uniform()

    before = tg.random.get_state()
    tg.random.seed(3)
    whole = call(f, "same")
    tg.random.seed(3)
    np.testing.assert_array_equal(call(f, "same", chunk_size=size), whole)
    tg.random.set_state(before)
    found = call(INDEPENDENT["normal"], "different", chunk_size=size)
    np.testing.assert_array_equal(found, call(INDEPENDENT["normal"], "different"))


def test_chunks_of_calls_one_after_the_other_differ():
    rng = tg.random.default_rng(1)
    f = tg.vmap(lambda x: x + rng.normal(), randomness="same", chunk_size=2)
    assert not np.array_equal(f(X), f(X))


def test_empty_batches():
    for f in (INDEPENDENT["normal"], INDEPENDENT["choice_once"], DEPENDENT["gamma"]):
        found = call(f, "different", X[:0])
        assert found.shape == (0, *call(f, "different").shape[1:])


def test_gradients_for_every_item():
    rng = tg.random.default_rng(1)
    found = tg.vmap(tg.grad(lambda a: rng.gamma(a).sum()), randomness="different")(X)
    alone = tg.grad(lambda a: tg.random.default_rng(1).gamma(a).sum())(X)
    np.testing.assert_allclose(found, alone, rtol=1e-13)
    rng = tg.random.default_rng(1)
    both = tg.vmap(
        lambda a: tg.jvp(lambda a: rng.beta(a, 2.0))(a, np.ones(2)), randomness="different"
    )
    value, tangent = both(X)
    rng = tg.random.default_rng(1)
    alone = tg.jvp(lambda a: rng.beta(a, 2.0))(X, np.ones_like(X))
    np.testing.assert_allclose([value, tangent], alone, rtol=1e-13)
    rng = tg.random.default_rng(1)
    bent = tg.vmap(tg.hessian(lambda a: rng.gamma(a).sum()), randomness="different")(X)
    whole = tg.hvp(lambda a: tg.random.default_rng(1).gamma(a).sum())(X, np.ones_like(X))
    np.testing.assert_allclose(bent.sum(axis=1), whole, rtol=1e-11)


def test_gradients_outside():
    def f(x):
        rng = tg.random.default_rng(1)
        return tg.vmap(lambda a: rng.gamma(a), randomness="different")(x).sum()

    expected = tg.grad(lambda x: tg.random.default_rng(1).gamma(x).sum())(X)
    np.testing.assert_allclose(tg.grad(f)(X), expected, rtol=1e-14)


def test_discrete_samples_of_items_that_require_gradients():
    with pytest.raises(TypeError, match="no derivative with respect to 'lam'"):
        tg.vmap(tg.grad(lambda a: 1.0 * tg.random.poisson(a)), randomness="different")(X[0])


class Noisy(tg.Function):
    """Adds noise; its rule for batches draws that of all items."""

    told = None

    @staticmethod
    def forward(ctx, x, rng):
        return x + rng.normal(size=x.shape)

    @staticmethod
    def backward(ctx, g):
        return g, None

    @staticmethod
    def vmap(info, in_dims, x, rng):
        Noisy.told = info
        return x + rng.normal(size=x.shape), 0


def test_rules_of_functions_draw_for_whole_batches():
    for randomness in ("error", "same", "different"):
        found = call(lambda x, rng: Noisy.apply(x, rng), randomness)
        np.testing.assert_array_equal(found, X + np.random.default_rng(1).normal(size=X.shape))
        assert Noisy.told == (4, randomness)
    rng = tg.random.default_rng(1)
    found = tg.vmap(lambda x: tg.vmap(lambda y: Noisy.apply(y, rng))(x), randomness="same")(
        X.reshape(2, 2, 2)
    )
    noise = np.random.default_rng(1).normal(size=(2, 2))
    np.testing.assert_array_equal(found, X.reshape(2, 2, 2) + noise)


def test_flags():
    with pytest.raises(RuntimeError) as info:
        tg.vmap(lambda x: x, randomness="some")
    assert str(info.value) == (
        "Only allowed values for randomness are 'error', 'different', or 'same'. Got some"
    )
    np.testing.assert_array_equal(tg.vmap(lambda x: x, 0, 0, "same")(X), X)
