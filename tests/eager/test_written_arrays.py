"""Arrays of NumPy that are overwritten after tensors were computed from them.

The ops of the table are in `tests/ops/test_written_operands.py`.
"""

import gc

import numpy as np
import pytest
from leaves import leaf

import tapegrad as tg
from tapegrad.eager import shared_memory
from tapegrad.utils.checkpoint import CheckpointError, checkpoint


@tg.njit
def compiled_sum(x, a):
    total = 0.0
    for k in range(x.size):
        total += x[k] * x[k] * a[k]
    return total


@tg.njit
def compiled_product(x, a):
    return x * x * a


@tg.njit
def compiled_of_pair(x, pair):
    return x * x * pair[0] * pair[1]


class Scaled(tg.Function):
    @staticmethod
    def forward(ctx, x, a):
        ctx.save_for_backward(x, a)
        return x.detach().numpy() * a

    @staticmethod
    def backward(ctx, g):
        return g * ctx.saved_tensors[1], None


def hooked(function):
    def called(x, a):
        with tg.autograd.graph.saved_tensors_hooks(lambda t: t, lambda t: t):
            return function(x, a)

    return called


def multiplied(x, a):
    y = x * 1.0
    y *= a
    return y


def assigned(x, a):
    y = tg.zeros(2)
    y[:] = x * a
    return y


def given_out(x, a):
    return tg.multiply(x, a, out=tg.zeros(2))


USES = {
    "operator": lambda x, a: x * a,
    "reflected": lambda x, a: a * x,
    "function of NumPy": np.multiply,
    "broadcast": lambda x, a: x * a[:, None],
    "backwards": lambda x, a: x * a[::-1],
    "number of NumPy in a list": lambda x, a: x * [a[0], a[1]],
    "other dtype": lambda x, a: x * a.astype(np.float32),
    "integers": lambda x, a: x * a.astype(int),
    "condition": lambda x, a: tg.where(a > 3.5, x * x, x),
    "condition that is kept": lambda x, a: [m := a > 3.5, tg.where(m, x * x, x)][1],
    "matrix": lambda x, a: x @ np.diag(a),
    "several": lambda x, a: tg.einsum("i,i,j->j", x, a, a),
    "in place": multiplied,
    "assigned": assigned,
    "out": given_out,
    "view": lambda x, a: x * tg.reshape(a, (2, 1)),
    "view of a view": lambda x, a: x * tg.reshape(a, (2, 1))[:, 0],
    "detached view": lambda x, a: x * tg.reshape(a, (2, 1)).detach(),
    "parts": lambda x, a: tg.split(a, 2)[1] * x,
    "array itself": lambda x, a: x * tg.atleast_1d(a),
    "asarray": lambda x, a: x * tg.asarray(a),
    "as_tensor": lambda x, a: x * tg.as_tensor(a),
    "from_dlpack": lambda x, a: x * tg.from_dlpack(a),
    "items": lambda x, a: tg.vmap(lambda p, q: p * q)(x, a),
    "shared by items": lambda x, a: tg.vmap(lambda p: p * a)(x),
    "tangent": lambda x, a: tg.jvp(lambda z: z * z * a)(x, np.ones(2))[1],
    "gradient": lambda x, a: tg.grad(lambda z: (z * z * a).sum())(x),
    "compiled number": compiled_sum,
    "compiled array": compiled_product,
    "recorded number": tg.jit(lambda x, a: tg.sum(x * x * a)),
    "recorded array": tg.jit(lambda x, a: x * x * a),
    "loop": lambda x, a: tg.scan(lambda c, _: (c * a, None), x, length=3)[0],
    "Function": Scaled.apply,
    "hooks": hooked(np.multiply),
    "hooks around a compiled number": hooked(compiled_sum),
    "hooks around a compiled array": hooked(compiled_product),
    "tuple that a compiled function is given": lambda x, a: compiled_of_pair(x, (a, 2.0)),
}


@pytest.mark.parametrize("name", USES)
def test_derivatives_are_those_at_the_values_that_were_used(name):
    use = USES[name]

    def derivatives(is_written):
        x, a = leaf([1.0, 2.0]), np.array([3.0, 4.0])
        y = use(x, a)
        if is_written:
            a[:] = [70.0, 80.0]
        (g,) = tg.autograd.grad((y * y).sum(), x, create_graph=True)
        (h,) = tg.autograd.grad((g * g).sum(), x)
        return g.detach().numpy(), h.numpy()

    np.testing.assert_array_equal(derivatives(True), derivatives(False))


def test_work_array_in_a_loop():
    def total(x):
        work, found = np.zeros(2), 0.0
        for k in range(3):
            work[:] = k + 1.0
            found = found + tg.sum(x * work)
        return found

    for f in (total, tg.jit(total)):
        assert tg.grad(f)(np.ones(2)).tolist() == [6.0, 6.0]
        assert tg.jvp(f)(np.ones(2), np.ones(2))[1] == 12.0


@pytest.mark.parametrize("reentrant", [True, False])
def test_values_that_are_computed_again_are_compared(reentrant):
    x, a = leaf([1.0, 2.0]), np.array([3.0, 4.0])
    y = checkpoint(lambda x: (x * a).exp().sum(), x, use_reentrant=reentrant)
    a[:] = 5.0
    with pytest.raises(CheckpointError):
        y.backward()


def test_memory_map(tmp_path):
    memory = np.memmap(tmp_path / "m", dtype=float, mode="w+", shape=(2,))
    memory[:] = [3.0, 4.0]
    x = leaf([1.0, 2.0])
    y = (x * memory).sum() + tg.dot(x, memory)
    memory[:] = 7.0
    y.backward()
    assert x.grad.tolist() == [6.0, 8.0]


SIZE = 40_000


class TestLargeArrays:
    def large(self):
        return np.linspace(0.0, 1.0, SIZE).copy()  # that is no view

    def saved(self, y):
        """The array of the second operand that the record of a product has."""
        return y._own[-1]

    @pytest.mark.parametrize("written", [slice(None), slice(-1, None), slice(123, 124)])
    def test_written(self, written):
        x, a = leaf(np.ones(SIZE)), self.large()
        y = (x * a).sum()
        wanted = a.copy()
        a[written] = 7.0
        y.backward()
        np.testing.assert_array_equal(x.grad.numpy(), wanted)

    def test_records_share_a_copy(self):
        x, a = leaf(np.ones(SIZE)), self.large()
        a[7] = np.nan
        one, two = self.saved(x * a), self.saved(x * a)
        assert one is two
        assert not np.shares_memory(one, a)
        a[7] = -0.0
        three = self.saved(x * a)
        a[7] = 0.0
        four = self.saved(x * a)
        assert three is not two
        assert four is not three  # other bits
        assert np.signbit(three[7]) and not np.signbit(four[7])

    @pytest.mark.parametrize("dtype", [bool, np.complex128, np.float32])
    def test_of_other_dtypes(self, dtype):
        x, a = leaf(np.ones(2 * SIZE)), np.arange(2 * SIZE * 2).reshape(-1, 2)[:, 0].astype(dtype)
        one, two = shared_memory.copied(a), shared_memory.copied(a)
        if a.nbytes >= shared_memory.LEAST:
            assert one is two
        a[-1] = 0
        assert one[-1] != 0
        assert shared_memory.copied(a) is not one
        assert x.size == a.size

    def test_copies_are_freed(self):
        x, a = leaf(np.ones(SIZE)), self.large()
        y = x * a
        assert len(shared_memory._copies) == 1
        del y
        gc.collect()
        assert len(shared_memory._copies) == 0

    def test_layout_is_kept(self):
        a = self.large().reshape(200, 200)
        assert shared_memory.copied(a.T).strides == a.T.strides

    def test_read_only_arrays_are_not_copied(self):
        x, a = leaf(np.ones(SIZE)), self.large()
        a.flags.writeable = False
        assert self.saved(x * a) is a
        data = a.tobytes()
        assert np.shares_memory(self.saved(x * np.frombuffer(data)), np.frombuffer(data))

    def test_views_that_cannot_be_written_to(self):
        """Their memory can, through the array that they are views of."""
        a = self.large()
        view = np.broadcast_to(a, (2, SIZE))
        assert not view.flags.writeable
        y = (leaf(np.ones((2, SIZE))) * view).sum()
        assert not np.shares_memory(shared_memory.copied(view), a)
        buffer = bytearray(a.tobytes())
        of_buffer = np.frombuffer(buffer)
        of_buffer.flags.writeable = False
        assert not np.shares_memory(shared_memory.copied(of_buffer), of_buffer)
        assert y.shape == ()

    def test_tensors_are_not_copied(self):
        x, a = leaf(np.ones(SIZE)), tg.tensor(self.large())
        assert self.saved(x * a) is a._a

    @pytest.mark.parametrize("start", [0.0, 1.0])  # at 0, value and gradient do not change
    def test_second_derivative_of_a_compiled_number(self, start):
        def derivatives(is_written):
            x, a = leaf(np.full(SIZE, start)), self.large()
            y = compiled_sum(x, a)
            if is_written:
                a[77] = 5.0
            (g,) = tg.autograd.grad(y, x, create_graph=True)
            (h,) = tg.autograd.grad(g.sum(), x)
            return g.detach().numpy(), h.numpy()

        first, second = derivatives(False)
        np.testing.assert_allclose(first, 2.0 * start * self.large(), rtol=1e-14)
        np.testing.assert_allclose(second, 2.0 * self.large(), rtol=1e-14)
        with pytest.raises(RuntimeError, match="compiled_sum: argument 1, an array, was written"):
            derivatives(True)

    @pytest.mark.parametrize("other", [np.ones(SIZE), tg.ones(SIZE)])
    def test_recorded_functions_of_tensors(self, other):
        f = tg.jit(lambda x, a: x * x * a * other)
        x, a = leaf(np.ones(SIZE)), tg.tensor(self.large())
        f(x, a)
        assert len(shared_memory._copies) == 0
        y = f(x, a).sum()
        a += 1.0
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            y.backward()

    def test_first_derivative_of_a_compiled_number(self):
        x, a = leaf(np.ones(SIZE)), self.large()
        wanted = 2.0 * a
        y = compiled_sum(x, a)
        a[:] = 5.0
        y.backward()
        np.testing.assert_allclose(x.grad.numpy(), wanted, rtol=1e-14)


ARGUMENTS = {
    "vector": np.array([1.0, 2.0, 3.0]),
    "with gaps": np.arange(1.0, 7.0)[::2],
    "column-major": np.asfortranarray(np.arange(1.0, 7.0).reshape(2, 3)),
    "large": np.linspace(0.1, 1.0, 40_000).reshape(200, 200),
    "large and transposed": np.linspace(0.1, 1.0, 40_000).reshape(200, 200).T,
}


@pytest.mark.parametrize("name", ARGUMENTS)
def test_the_function_overwrites_its_argument(name):
    a = ARGUMENTS[name]
    before = a.copy()

    def f(x):
        y = tg.sum(x * x * x)
        a[...] = 9.0
        return y + tg.sum(tg.sin(x))

    expected = 3 * before**2 + np.cos(before)
    derivatives = {
        "grad": lambda: tg.grad(f)(a),
        "value_and_grad": lambda: tg.value_and_grad(f)(a)[1],
        "jacobian": lambda: tg.jacobian(f)(a),
        "vjp": lambda: tg.vjp(f, a)[1](1.0)[0],
    }
    for derivative in derivatives.values():
        np.testing.assert_allclose(derivative(), expected)
        a[...] = before
    direction = np.cos(before)
    product = tg.hvp(f)(a, direction)
    a[...] = before
    np.testing.assert_allclose(product, (6 * before - np.sin(before)) * direction)
    tangent = tg.linearize(f, a)[1](direction)
    a[...] = before
    np.testing.assert_allclose(tangent, np.sum(expected * direction))


@pytest.mark.parametrize("name", ARGUMENTS)
def test_copied_arguments_lie_in_memory_as_they_did(name):
    a = ARGUMENTS[name]
    found = []

    def f(x):
        found.append(x.strides)
        return tg.sum(x * x)

    tg.grad(f)(a)
    tg.vjp(f, a)
    tg.linearize(f, a)
    assert found == [a.strides] * 3
