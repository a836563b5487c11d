"""Functions of matrices beside SciPy's and differences, systems by factors, sparse matrices."""

import numpy as np
import pytest
import scipy.linalg
import scipy.sparse

import tapegrad as tg
from tapegrad.autograd import gradcheck, gradgradcheck

KINDS = ["real", "complex"]


def data(shape, kind="real", seed=0):
    rng = np.random.default_rng(seed + sum(shape))
    found = rng.normal(size=shape)
    return found + 1j * rng.normal(size=shape) if kind == "complex" else found


def regular(shape, kind="real"):
    """Matrices with eigenvalues that are far from 0 and from negative numbers."""
    return 0.4 * data(shape, kind) + 2.0 * np.eye(shape[-1])


def leaf(array):
    return tg.tensor(array, requires_grad=True)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", ["expm", "logm", "sqrtm"])
class TestFunctionsOfMatrices:
    def test_values_and_derivatives(self, name, kind):
        ours, scipys = getattr(tg.linalg, name), getattr(scipy.linalg, name)
        x = regular((3, 3), kind)
        np.testing.assert_allclose(ours(leaf(x)).detach().numpy(), scipys(x), atol=1e-12)
        assert gradcheck(ours, leaf(x), nondet_tol=1e-12)
        assert gradgradcheck(ours, leaf(x), nondet_tol=1e-9)

    def test_stacks(self, name, kind):
        ours, scipys = getattr(tg.linalg, name), getattr(scipy.linalg, name)
        x = regular((2, 2, 2), kind)
        np.testing.assert_allclose(ours(x).numpy(), [scipys(m) for m in x], atol=1e-12)
        assert gradcheck(ours, leaf(x), nondet_tol=1e-12)
        assert ours(np.empty((0, 2, 2))).shape == (0, 2, 2)

    def test_precision_stays(self, name, kind):
        x = regular((3, 3), kind).astype(np.complex64 if kind == "complex" else np.float32)
        t = leaf(x)
        found = getattr(tg.linalg, name)(t)
        assert found.dtype == x.dtype
        (gradient,) = tg.autograd.grad(tg.absolute(found).sum(), t)
        assert gradient.dtype == x.dtype


class TestWhereTheyAreNotDifferentiable:
    @pytest.mark.parametrize("name", ["logm", "sqrtm"])
    @pytest.mark.parametrize("kind", KINDS)
    def test_negative_eigenvalues(self, name, kind):
        x = np.diag([2.0, -1.0]).astype(complex if kind == "complex" else float)
        found = getattr(tg.linalg, name)(leaf(x))
        np.testing.assert_allclose(found.detach(), getattr(scipy.linalg, name)(x), atol=1e-12)
        with pytest.raises(np.linalg.LinAlgError, match="eigenvalue is 0 or a negative number"):
            tg.absolute(found).sum().backward()

    def test_exponential_of_negative_ones(self):
        assert gradcheck(tg.linalg.expm, leaf(np.array([[-1.0, 0.3], [0.1, -2.0]])))
        assert gradcheck(tg.linalg.expm, leaf(np.zeros((2, 2))))

    def test_shapes(self):
        with pytest.raises(ValueError, match="expm: expected square matrices, got shape"):
            tg.linalg.expm(leaf(np.ones((2, 3))))


class TestFactors:
    @pytest.mark.parametrize("kind", KINDS)
    @pytest.mark.parametrize("lower", [False, True])
    def test_solutions(self, lower, kind):
        root, b = data((3, 3), kind), data((3, 2), kind)
        a = root @ root.conj().T + np.eye(3)
        factor = tg.linalg.cho_factor(leaf(a), lower=lower)
        expected = scipy.linalg.cho_solve(scipy.linalg.cho_factor(a, lower=lower), b)
        for given in (factor, scipy.linalg.cho_factor(a, lower=lower)):
            for right in (b, b[:, 0]):
                found = tg.linalg.cho_solve(given, leaf(right)).detach().numpy()
                exact = expected if right.ndim == 2 else expected[:, 0]
                np.testing.assert_allclose(found, exact, atol=1e-10)

        def solution(root, b):
            a = root @ tg.conj(root.T) + np.eye(3)
            return tg.linalg.cho_solve(tg.linalg.cho_factor(a, lower), b)

        assert gradcheck(solution, (leaf(root), leaf(b)))
        assert gradgradcheck(solution, (leaf(root), leaf(b)))

    def test_a_factor_alone_is_refused(self):
        with pytest.raises(TypeError, match="expected the pair"):
            tg.linalg.cho_solve(leaf(np.eye(2)), np.ones(2))


class TestSparseMatrices:
    @pytest.mark.parametrize("kind", KINDS)
    @pytest.mark.parametrize("made", [scipy.sparse.csr_array, scipy.sparse.coo_matrix])
    def test_products(self, made, kind):
        dense = data((4, 3), kind) * (data((4, 3), seed=1) > 0.0)
        matrix = made(dense)
        for x, y in [((3,), (4,)), ((3, 2), (2, 4))]:
            x, y = leaf(data(x)), leaf(data(y))
            for product in (tg.matmul, np.matmul):
                np.testing.assert_allclose(product(matrix, x).detach(), dense @ x.detach().numpy())
            np.testing.assert_allclose((y @ matrix).detach(), y.detach().numpy() @ dense)
            assert gradcheck(lambda x: tg.matmul(matrix, x), x)
            assert gradcheck(lambda y: y @ matrix, y)
            assert gradgradcheck(lambda x: tg.matmul(matrix, x) ** 2, x)

    def test_gradients_are_those_of_dense_matrices(self):
        dense = data((4, 3)) * (data((4, 3), seed=1) > 0.0)
        matrix = scipy.sparse.csc_array(dense)
        x = data((3,))
        found = tg.grad(lambda x: tg.sum(tg.sin(tg.matmul(matrix, x))))(x)
        np.testing.assert_allclose(found, tg.grad(lambda x: tg.sum(tg.sin(dense @ x)))(x))

    def test_what_is_refused(self):
        matrix, x = scipy.sparse.csr_array(np.eye(2)), leaf(np.ones(2))
        with pytest.raises(RuntimeError, match=r"tg\.matmul\(S, t\)"):
            matrix @ x
        with pytest.raises(ValueError, match="2 sparse dimensions and 3 others"):
            tg.matmul(matrix, np.ones((2, 2, 2)))
        with pytest.raises(TypeError, match="sparse"):
            x * matrix

    def test_shapes_that_are_refused(self):
        matrix = scipy.sparse.csr_array(np.eye(2))
        with pytest.raises(TypeError, match="two sparse matrices"):
            tg.matmul(matrix, matrix)
        with pytest.raises(ValueError, match="1 sparse dimensions"):
            tg.matmul(scipy.sparse.coo_array(np.ones(2)), leaf(np.ones(2)))
        np.testing.assert_array_equal(tg.matmul(matrix, [1.0, 2.0]), [1.0, 2.0])


class TestSizesOfCotangents:
    """The derivative is linear in the cotangent, whatever its size."""

    @pytest.mark.parametrize("name", ["expm", "logm", "sqrtm"])
    @pytest.mark.parametrize("scale", [1e-100, 1e8, 1e30, 1e150])
    def test_gradients(self, name, scale):
        function, x = getattr(tg.linalg, name), regular((3, 3))
        plain = tg.grad(lambda x: tg.sum(function(x)))(x)
        found = tg.grad(lambda x: tg.sum(function(x)) * scale)(x)
        np.testing.assert_allclose(found / scale, plain, rtol=1e-9, atol=1e-12)

    @pytest.mark.parametrize("scale", [1e-10, 1e10])
    def test_second_derivatives(self, scale):
        x = data((3, 3))
        plain = tg.hessian(lambda x: tg.sum(tg.linalg.expm(x)))(x)
        found = tg.hessian(lambda x: tg.sum(tg.linalg.expm(x)) * scale)(x)
        np.testing.assert_allclose(found / scale, plain, rtol=1e-9, atol=1e-9)

    def test_lists_and_nothing(self):
        np.testing.assert_allclose(tg.linalg.expm([[0.0, 0.0], [0.0, 0.0]]), np.eye(2))
        assert tg.linalg.sqrtm(np.zeros((0, 0))).shape == (0, 0)
