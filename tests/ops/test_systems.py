"""Pseudo-inverses, least squares, chains of products, general eigenvalues: NumPy's values, and
derivatives beside differences, also of second order.
"""

import numpy as np
import pytest

import tapegrad as tg
from tapegrad.autograd import gradcheck, gradgradcheck

KINDS = ["real", "complex"]


def data(shape, kind="real", seed=0):
    rng = np.random.default_rng(seed + sum(shape))
    found = rng.normal(size=shape)
    return found + 1j * rng.normal(size=shape) if kind == "complex" else found


def leaf(array):
    return tg.tensor(array, requires_grad=True)


def values(found):
    return found.detach().numpy() if isinstance(found, tg.Tensor) else found


@pytest.mark.parametrize("kind", KINDS)
class TestPseudoInverse:
    @pytest.mark.parametrize("shape", [(3, 2), (2, 3), (3, 3), (2, 4, 2), (1, 3)])
    def test_value_and_derivatives(self, shape, kind):
        x = data(shape, kind)
        for call in (tg.linalg.pinv, np.linalg.pinv):
            np.testing.assert_allclose(values(call(leaf(x))), np.linalg.pinv(x), atol=1e-12)
        assert gradcheck(tg.linalg.pinv, (leaf(x),))
        assert gradgradcheck(tg.linalg.pinv, (leaf(x),))

    def test_deficient_rank(self, kind):
        """Along matrices of one rank: here u is moved, and u @ v stays of rank 2."""
        u, v = data((4, 2), kind), data((2, 3), kind, 1)

        def of_rank_two(u):
            return tg.linalg.pinv(u @ v, 1e-10)

        np.testing.assert_allclose(values(of_rank_two(u)), np.linalg.pinv(u @ v), atol=1e-10)
        assert gradcheck(of_rank_two, (leaf(u),), atol=1e-4)


class TestLeastSquares:
    @pytest.mark.parametrize("columns", [(), (2,)])
    @pytest.mark.parametrize("rows, unknowns", [(4, 2), (2, 4), (3, 3)])
    def test_values_and_derivatives(self, rows, unknowns, columns):
        a, b = data((rows, unknowns)), data((rows, *columns), seed=3)
        expected = np.linalg.lstsq(a, b)
        for call in (tg.linalg.lstsq, np.linalg.lstsq):
            for one, two in zip(call(leaf(a), leaf(b)), expected, strict=True):
                assert np.shape(values(one)) == np.shape(two)
                np.testing.assert_allclose(values(one), two, rtol=1e-10, atol=1e-12)
        inputs = (leaf(a), leaf(b))
        assert gradcheck(lambda a, b: tg.linalg.lstsq(a, b)[0], inputs)
        assert gradgradcheck(lambda a, b: tg.linalg.lstsq(a, b)[0], inputs)
        assert gradcheck(lambda a: tg.linalg.lstsq(a, b)[3], inputs[:1])
        if rows > unknowns:
            assert gradcheck(lambda a, b: tg.linalg.lstsq(a, b)[1], inputs)
            assert gradgradcheck(lambda a, b: tg.linalg.lstsq(a, b)[1], inputs)

    def test_deficient_rank(self):
        a = data((4, 2)) @ data((2, 3))
        b = data((4,), seed=5)
        expected = np.linalg.lstsq(a, b, rcond=1e-10)
        found = np.linalg.lstsq(leaf(a), b, rcond=1e-10)
        np.testing.assert_allclose(values(found[0]), expected[0], atol=1e-10)
        assert found[1].shape == expected[1].shape == (0,)
        assert found[2] == expected[2] == 2

    def test_integers_and_machine_precision(self):
        a, b = np.outer([1, 2, 3, 4], [1, 2, 3]), np.array([1, 0, 2, 1])
        for rcond in (None, -1):
            expected = np.linalg.lstsq(a, b, rcond)
            found = np.linalg.lstsq(tg.tensor(a), tg.tensor(b), rcond)
            np.testing.assert_allclose(values(found[0]), expected[0], rtol=1e-9)
            assert found[2] == expected[2] == 1


class TestCondition:
    @pytest.mark.parametrize("p", [None, 2, -2, 1, -1, np.inf, -np.inf, "fro"])
    def test_value_and_derivative(self, p):
        x = data((3, 3))
        for call in (tg.linalg.cond, np.linalg.cond):
            np.testing.assert_allclose(values(call(leaf(x), p)), np.linalg.cond(x, p), rtol=1e-12)
        assert gradcheck(lambda x: tg.linalg.cond(x, p), (leaf(x),))

    def test_of_nothing_but_zeros(self):
        for p in (None, 2, -2, 1, "fro"):
            found = np.linalg.cond(tg.zeros((2, 2)), p)
            np.testing.assert_array_equal(values(found), np.linalg.cond(np.zeros((2, 2)), p))

    def test_singular_ones_among_others(self):
        x = np.stack([np.ones((3, 3)), data((3, 3))])
        for p in (1, np.inf, "fro"):
            given = leaf(x)
            found = tg.linalg.cond(given, p)
            np.testing.assert_allclose(values(found), np.linalg.cond(x, p))
            found.sum().backward()
            alone = tg.grad(lambda x, p=p: tg.linalg.cond(x, p))(x[1])
            np.testing.assert_allclose(values(given.grad), [np.zeros((3, 3)), alone])
            np.testing.assert_allclose(
                tg.jit(lambda x, p=p: tg.linalg.cond(x, p))(x), values(found)
            )

    def test_of_a_stack(self):
        x = data((2, 3, 3))
        for p in (None, 1, "fro"):
            np.testing.assert_allclose(values(np.linalg.cond(leaf(x), p)), np.linalg.cond(x, p))


class TestChains:
    FACTORS = tuple(data(s, seed=7) for s in ((5,), (5, 3), (3, 7), (7, 2), (2, 4), (4,)))

    @pytest.mark.parametrize("part", [(0, 6), (1, 5), (0, 5), (1, 6), (1, 3), (0, 2), (4, 6)])
    def test_value_and_derivatives(self, part):
        factors = self.FACTORS[slice(*part)]
        expected = np.linalg.multi_dot(factors) if len(factors) > 1 else None
        leaves = [leaf(x) for x in factors]
        for call in (tg.linalg.multi_dot, np.linalg.multi_dot):
            found = values(call(leaves))
            assert found.shape == np.shape(expected)
            np.testing.assert_allclose(found, expected, rtol=1e-12)
        assert gradcheck(lambda *leaves: tg.linalg.multi_dot(leaves), leaves)

    def test_order(self):
        """A chain that is cheap from the right would need 1e10 numbers from the left."""
        column, row = leaf(data((100_000, 1))), leaf(data((1, 100_000)))
        found = tg.linalg.multi_dot([column, row, tg.ones((100_000, 1))])
        np.testing.assert_allclose(values(found), values(column) * values(row).sum(), rtol=1e-9)

    def test_refused(self):
        with pytest.raises(ValueError, match="expected at least two arrays"):
            tg.linalg.multi_dot([tg.ones((2, 2))])
        with pytest.raises(ValueError, match="array 1 has 1 axes; each has two"):
            tg.linalg.multi_dot([tg.ones((2, 2)), tg.ones(2), tg.ones((2, 2))])


class TestEigenvalues:
    @pytest.mark.parametrize("kind", KINDS)
    @pytest.mark.parametrize("shape", [(4, 4), (2, 3, 3), (1, 1)])
    def test_values_and_derivatives(self, shape, kind):
        x = data(shape, kind)
        for call in (tg.linalg.eig, np.linalg.eig):
            for one, two in zip(call(leaf(x)), np.linalg.eig(x), strict=True):
                np.testing.assert_allclose(values(one), two, rtol=1e-12, atol=1e-12)
        np.testing.assert_allclose(values(np.linalg.eigvals(leaf(x))), np.linalg.eigvals(x))
        weights = np.arange(1.0, shape[-1] + 1)

        def of_values(x):
            return tg.sum(tg.absolute(tg.linalg.eigvals(x)) ** 4)

        def of_vectors(x):
            _, v = tg.linalg.eig(x)
            return tg.sum(tg.absolute(v) ** 4 * weights[:, None])

        for f in (of_values, of_vectors):
            assert gradcheck(f, (leaf(x),))
            assert gradgradcheck(f, (leaf(x),))

    def test_sums_of_powers(self):
        """The trace of a power is the sum of powers of eigenvalues."""
        x = data((4, 4))
        found = tg.grad(lambda x: tg.sum(tg.linalg.eigvals(x) ** 3).real)(x)
        np.testing.assert_allclose(found, 3 * np.linalg.matrix_power(x, 2).T, rtol=1e-10)

    def test_phases_are_refused(self):
        turning = np.array([[0.3, -1.0], [1.0, 0.4]])
        with pytest.raises(RuntimeError, match="specified up to multiplication by e"):
            tg.grad(lambda x: tg.sum(tg.linalg.eig(x)[1].imag * [[1.0, 2.0], [3.0, 4.0]]))(turning)


class TestProductsOfVectors:
    @pytest.mark.parametrize("kind", KINDS)
    @pytest.mark.parametrize("name", ["matvec", "vecmat", "vecdot"])
    def test_value_and_derivatives(self, name, kind):
        x = data((2, 4, 3) if name == "matvec" else (2, 4), kind)
        y = data({"matvec": (3,), "vecmat": (4, 3), "vecdot": (4,)}[name], kind, 2)
        if not hasattr(np, name):
            pytest.skip(f"this NumPy has no {name}")
        for call in (getattr(tg, name), getattr(np, name)):
            found = call(leaf(x), leaf(y))
            np.testing.assert_allclose(values(found), getattr(np, name)(x, y), rtol=1e-12)
        assert gradcheck(getattr(tg, name), (leaf(x), leaf(y)))


class TestCorrelation:
    @pytest.mark.parametrize("kind", KINDS)
    @pytest.mark.parametrize("mode", ["full", "same", "valid"])
    @pytest.mark.parametrize(
        "sizes", [(5, 3), (3, 5), (4, 4), (6, 2), (2, 6), (3, 6), (6, 3), (1, 4)]
    )
    def test_value(self, sizes, mode, kind):
        a, v = data(sizes[:1], kind), data(sizes[1:], kind, 1)
        for call in (tg.correlate, np.correlate):
            found = call(leaf(a), leaf(v), mode)
            np.testing.assert_allclose(values(found), np.correlate(a, v, mode), atol=1e-12)

    @pytest.mark.parametrize("mode", ["full", "same", "valid"])
    def test_derivatives(self, mode):
        inputs = leaf(data((5,), "complex")), leaf(data((3,), "complex"))
        assert gradcheck(lambda a, v: tg.correlate(a, v, mode), inputs)
        assert gradgradcheck(lambda a, v: tg.correlate(a, v, mode), inputs)


class TestAccumulatedExtremes:
    X = np.array([[1.0, 3.0, 2.0], [2.0, 3.0, np.nan], [0.0, 5.0, 1.0], [4.0, 1.0, 9.0]])

    @pytest.mark.parametrize("axis", [0, 1])
    @pytest.mark.parametrize("ufunc, ours", [(np.maximum, tg.cummax), (np.minimum, tg.cummin)])
    def test_value(self, ufunc, ours, axis):
        expected = ufunc.accumulate(self.X, axis=axis)
        for found in (ufunc.accumulate(leaf(self.X), axis=axis), ours(leaf(self.X), axis)):
            np.testing.assert_array_equal(values(found), expected)

    @pytest.mark.parametrize("ours", [tg.cummax, tg.cummin])
    def test_derivatives(self, ours):
        assert gradcheck(lambda x: ours(x, 1), (leaf(data((3, 4))),))
        assert gradgradcheck(lambda x: ours(x) ** 2, (leaf(data((5,))),))

    def test_ties_and_nan(self):
        """Of equal elements the first counts, and the first nan stays."""
        x = leaf([1.0, 3.0, 3.0, 2.0])
        tg.cummax(x).sum().backward()
        np.testing.assert_array_equal(values(x.grad), [1.0, 3.0, 0.0, 0.0])
        y = leaf([1.0, np.nan, 3.0, np.nan])
        found = np.maximum.accumulate(y)
        np.testing.assert_array_equal(values(found), [1.0, np.nan, np.nan, np.nan])
        found.sum().backward()
        np.testing.assert_array_equal(values(y.grad), [1.0, 3.0, 0.0, 0.0])


@pytest.mark.parametrize(
    "call",
    [
        lambda a: np.linalg.pinv(a, rtol=0.6),
        lambda a: np.linalg.pinv(a, rcond=0.6),
        lambda a: np.linalg.lstsq(a, np.ones(2), rcond=0.6)[0],
    ],
)
def test_singular_values_that_are_left_out(call):
    """The value is NumPy's; the rule holds for matrices of that rank only."""
    t = leaf(np.diag([2.0, 1.0]))
    found = call(t)
    np.testing.assert_allclose(values(found), call(np.diag([2.0, 1.0])))
    with pytest.raises(np.linalg.LinAlgError, match="leaves out singular values that are not 0"):
        found.sum().backward()


def test_two_names_of_one_limit():
    with pytest.raises(ValueError, match="both rcond and rtol"):
        tg.linalg.pinv(leaf(np.eye(2)), 0.1, rtol=0.1)
