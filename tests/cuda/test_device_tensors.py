"""Tensors on a device: moving, views and writes, hooks, Functions, modes, errors, and memory."""

import copy
import functools
import gc
import pickle

import numpy as np
import pytest

import tapegrad as tg
from tapegrad.cuda import memory
from tapegrad.cuda.array import DeviceArray

pytestmark = pytest.mark.skipif(not tg.cuda.is_available(), reason="there is no CUDA device")

X = np.array([[0.3, -1.2, 2.0], [1.5, 0.7, -0.4]])


def leaf(values=X, device="cuda", dtype=None):
    return tg.tensor(values, dtype=dtype, device=device, requires_grad=True)


def assert_equal(tensor, expected, rtol=1e-13):
    assert tensor.device == "cuda:0"
    np.testing.assert_allclose(tensor.detach().cpu().numpy(), expected, rtol, 1e-14)


class TestMoving:
    def test_there_and_back(self):
        x = tg.tensor(X)
        y = x.to("cuda")
        assert (x.device, y.device) == ("cpu", "cuda:0")
        assert y.to("cuda:0") is y and y.cuda() is y and x.cpu() is x
        np.testing.assert_array_equal(y.cpu().numpy(), X)
        assert y.shape == (2, 3) and y.dtype == np.float64 and len(y) == 2

    def test_gradients_move_back(self):
        x = tg.tensor(X, requires_grad=True)
        y = x.to("cuda")
        z = (y * y).cpu()
        (z * x).sum().backward()
        np.testing.assert_allclose(x.grad.numpy(), 3 * X**2)
        assert z.grad_fn is not None

    def test_second_order_through_moves(self):
        x = tg.tensor(X, requires_grad=True)
        (g,) = tg.autograd.grad((x.to("cuda") ** 3).cpu().sum(), x, create_graph=True)
        (h,) = tg.autograd.grad(g.sum(), x)
        np.testing.assert_allclose(h.numpy(), 6 * X)

    def test_dtype_and_tensor(self):
        x = tg.tensor(X)
        y = x.to("cuda", "float32")
        assert (y.device, y.dtype) == ("cuda:0", np.float32)
        assert x.to(y).dtype == np.float32 and x.to(y).device == "cuda:0"
        assert x.to(dtype=np.float32).device == "cpu"
        assert x.to(copy=True) is not x

    def test_makers(self):
        for made in (
            tg.zeros((2, 3), device="cuda"),
            tg.arange(4, device="cuda"),
            tg.zeros_like(leaf()),
            tg.as_tensor(X, device="cuda"),
            tg.ones(3, requires_grad=True, device="cuda"),
        ):
            assert made.device == "cuda:0"
        assert_equal(tg.full((2,), 7.0, device="cuda"), [7.0, 7.0])

    def test_of_all_dtypes(self):
        for dtype in (bool, np.int8, np.uint16, np.int64, np.float32, np.float64, complex):
            values = np.array([0, 1, 2]).astype(dtype)
            found = tg.tensor(values, device="cuda")
            assert found.dtype == values.dtype
            np.testing.assert_array_equal(found.cpu().numpy(), values)

    def test_byte_order_and_layout(self):
        for values in (X.astype(">f8"), X.T, X[:, ::-2], np.zeros((0, 3)), np.array(2.5)):
            np.testing.assert_array_equal(tg.tensor(values, device="cuda").cpu().numpy(), values)

    def test_unknown_devices(self):
        with pytest.raises(ValueError, match="'cpu' or on 'cuda'"):
            leaf().to("cuda:1")
        with pytest.raises(ValueError, match="'cpu' or on 'cuda'"):
            tg.tensor(X, device="tpu")
        with pytest.raises(TypeError, match="no arrays of dtype float16 on a device"):
            tg.tensor(X.astype(np.float16), device="cuda")

    def test_pickles_and_copies(self):
        x = leaf()
        x.grad = tg.ones((2, 3), device="cuda")
        for made in (pickle.loads(pickle.dumps(x)), copy.deepcopy(x)):
            assert_equal(made, X)
            assert_equal(made.grad, np.ones((2, 3)))
            assert made.requires_grad

    def test_text(self):
        assert repr(tg.tensor([1.0], device="cuda")) == "tensor([1.], device='cuda:0')"
        assert f"{tg.tensor(2.0, device='cuda'):.1f}" == "2.0"


class TestOnTheHost:
    """What needs values on the host waits, or says so."""

    def test_numbers(self):
        x = leaf()
        assert x[1, 0].item() == 1.5 and x.item(4) == 0.7
        assert x.tolist() == X.tolist()
        assert float(tg.tensor(2.0, device="cuda")) == 2.0
        assert bool((x > 5.0).any()) is False
        with pytest.raises(ValueError, match="size 1"):
            x.item()

    def test_arrays(self):
        x = leaf().detach()
        for call in (x.numpy, lambda: np.asarray(x), lambda: np.packbits(x)):
            with pytest.raises(TypeError, match=r"cpu\(\)"):
                call()
        with pytest.raises((BufferError, RuntimeError), match=r"simulated|[Uu]nsupported device"):
            np.from_dlpack(x)

    def test_tensors_of_two_devices(self):
        x, y = leaf(), tg.tensor(X)
        for call in (
            lambda: x + y,
            lambda: y * x,
            lambda: tg.where(x > 0, x, y),
            lambda: tg.concatenate([x, y]),
            lambda: x @ y.T,
            lambda: tg.maximum(y, x),
        ):
            with pytest.raises(RuntimeError, match="cuda:0 and cpu"):
                call()

    def test_numbers_and_constants_mix(self):
        x = leaf()
        (x * X + 2.0 * tg.tensor(3.0)).sum().backward()
        assert_equal(x.grad, X)
        scale = tg.tensor(2.0, requires_grad=True)
        (leaf() * scale).sum().backward()
        assert scale.grad.device == "cpu"
        np.testing.assert_allclose(scale.grad.item(), X.sum())

    def test_cotangents_of_another_device(self):
        x = leaf()
        with pytest.raises(RuntimeError, match=r"grad_output\[0\] is on device cpu"):
            (x * x).backward(tg.ones((2, 3)))

    def test_gradients_of_another_device(self):
        class Host(tg.Function):
            @staticmethod
            def forward(ctx, x):
                return x * 2.0

            @staticmethod
            def backward(ctx, g):
                return g.cpu()

        x = leaf()
        with pytest.raises(RuntimeError, match="expected device cuda:0 but got cpu"):
            Host.apply(x).sum().backward()


class TestViews:
    def test_memory_is_shared(self):
        x = tg.tensor(X, device="cuda")
        for view in (x[1:], x.T, x[:, ::-1], x.reshape(3, 2), x[0, 1], x.ravel(), x[None]):
            assert view._is_view() and view._base is x
        x.T[1] = 5.0
        assert_equal(x[:, 1], [5.0, 5.0])
        assert not x.T.reshape(6)._is_view()

    def test_writes_through_views(self):
        def program(device):
            x = leaf(device=device)
            y = x * 1.0
            y[0] *= 2.0
            first, last = y[:, 0], y[1:]
            first += x[:, 1]
            last.mul_(x[0])
            y[:, 2:] = 0.5
            y[np.array([0, 1]), np.array([1, 0])] = x[0, :2]
            (y * y + tg.sin(last).sum()).sum().backward()
            return y.detach().cpu().numpy(), x.grad.cpu().numpy()

        for got, want in zip(program("cuda"), program("cpu"), strict=True):
            np.testing.assert_allclose(got, want, 1e-13)

    def test_overlapping_copies(self):
        values = np.arange(6.0)
        x = tg.tensor(values, device="cuda")
        x[1:] = x[:-1]
        assert_equal(x, [0.0, 0.0, 1.0, 2.0, 3.0, 4.0])
        x[:] = x[::-1]
        assert_equal(x, [4.0, 3.0, 2.0, 1.0, 0.0, 0.0])

    def test_from_the_host(self):
        y = leaf() * 1.0
        y[0] = X[1]
        y[1] = tg.tensor(X[0], requires_grad=True)
        assert_equal(y, X[::-1])
        z = tg.zeros((2, 3))
        x = leaf()
        z[...] = x
        assert z.device == "cpu"
        (z * z).sum().backward()
        assert_equal(x.grad, 2 * X)

    def test_saved_values_that_change(self):
        x = leaf()
        y = tg.exp(x)
        y += 1.0
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            y.sum().backward()

    def test_leaves(self):
        x = leaf()
        with pytest.raises(RuntimeError, match="a leaf Variable that requires grad"):
            x += 1.0
        with tg.no_grad():
            x += 1.0
        assert_equal(x, X + 1.0)

    def test_repeated_indices(self):
        def program(device):
            x, v = (
                leaf(device=device),
                tg.tensor([1.0, 2.0, 3.0], device=device, requires_grad=True),
            )
            y = tg.zeros(4, device=device)
            y[np.array([2, 0, 2])] = v
            z = x[:, np.array([0, 0, 2])] * y[:3]
            (z * z).sum().backward()
            return y.detach().cpu().numpy(), x.grad.cpu().numpy(), v.grad.cpu().numpy()

        for got, want in zip(program("cuda"), program("cpu"), strict=True):
            np.testing.assert_allclose(got, want, 1e-13)

    @pytest.mark.parametrize("index", [5, -3, (0, 3), ([0, 2],), (slice(None), [-4])])
    def test_out_of_bounds(self, index):
        with pytest.raises(IndexError, match="out of bounds"):
            leaf()[index]
        with pytest.raises(IndexError, match="out of bounds"):
            leaf().detach()[tg.tensor([0, 7], device="cuda")]


class TestAutograd:
    def test_accumulation_and_freeing(self):
        x = leaf()
        y = (tg.sin(x) * x).sum()
        y.backward(retain_graph=True)
        y.backward()
        assert_equal(x.grad, 2 * (np.sin(X) + X * np.cos(X)))
        with pytest.raises(RuntimeError, match="a second time"):
            y.backward()

    def test_hooks(self):
        x, seen = leaf(), []
        y = x * 2.0
        y.register_hook(lambda g: seen.append(g.device) or g * 3.0)
        y.retain_grad()
        x.register_post_accumulate_grad_hook(lambda t: seen.append(t.grad.device))
        z = y.sum()
        z.grad_fn.register_prehook(lambda grads: (grads[0] * 5.0,))
        y.grad_fn.register_hook(lambda inputs, outputs: (inputs[0] + 1.0, *inputs[1:]))
        z.backward()
        assert seen == ["cuda:0", "cuda:0"]
        assert_equal(y.grad, np.full((2, 3), 15.0))
        assert_equal(x.grad, np.full((2, 3), 31.0))

    def test_functions(self):
        class Two(tg.Function):
            @staticmethod
            def forward(ctx, x, y):
                ctx.save_for_backward(x, y)
                return x * y, x + y

            @staticmethod
            def backward(ctx, g, h):
                x, y = ctx.saved_tensors
                assert h.device == "cuda:0"
                return g * y + h, g * x + h

        x, y = leaf(), leaf(X[::-1].copy())
        product, _ = Two.apply(x, y)
        product.sum().backward()
        assert_equal(x.grad, X[::-1])
        assert_equal(y.grad, X)

    def test_inputs_that_are_not_leaves(self):
        x = leaf()
        y = tg.exp(x)
        z = (y * y).sum()
        g, h = tg.autograd.grad(z, [y, x])
        assert_equal(g, 2 * np.exp(X))
        assert_equal(h, 2 * np.exp(2 * X))
        unused = leaf()
        assert tg.autograd.grad(x.sum(), unused, allow_unused=True) == (None,)
        (zero,) = tg.autograd.grad(x.sum(), unused, materialize_grads=True)
        assert_equal(zero, np.zeros((2, 3)))

    def test_several_outputs_and_broadcasting(self):
        x, row, number = leaf(), leaf(X[0]), leaf(np.array(0.5))
        a, b = tg.split(x * row + number, 2)
        ((a * b).sum() + tg.max(x)).backward()
        np.testing.assert_allclose(row.grad.cpu().numpy().shape, (3,))
        y, r, n = (tg.tensor(v, requires_grad=True) for v in (X, X[0], np.array(0.5)))
        c, d = tg.split(y * r + n, 2)
        ((c * d).sum() + tg.max(y)).backward()
        for got, want in ((x, y), (row, r), (number, n)):
            assert_equal(got.grad, want.grad.numpy())

    @pytest.mark.parametrize("pin_memory", [False, True])
    def test_saved_on_the_host(self, pin_memory):
        packed = []
        x = leaf()
        with tg.autograd.graph.save_on_cpu(pin_memory=pin_memory):
            y = tg.sin(x) * x
        with tg.autograd.graph.saved_tensors_hooks(lambda t: packed.append(t) or t, lambda t: t):
            z = (y * y).sum()
        assert packed[0].device == "cuda:0"
        z.backward()
        f, df = np.sin(X) * X, np.sin(X) + X * np.cos(X)
        assert_equal(x.grad, 2 * f * df)

    @pytest.mark.filterwarnings("ignore:Anomaly Detection", "ignore:Error detected in")
    def test_anomaly_mode(self):
        x = leaf(np.zeros(2))
        with (
            tg.autograd.detect_anomaly(),
            pytest.raises(RuntimeError, match="returned nan values in its 0th output"),
        ):
            (tg.sqrt(x) * 0.0).sum().backward()

    def test_modes(self):
        x = leaf()
        with tg.no_grad():
            assert not (x * x).requires_grad
        with tg.inference_mode():
            y = tg.exp(x)
        assert y.is_inference() and y.device == "cuda:0"

    @pytest.mark.parametrize("allows_writes", [False, True])
    def test_selective_checkpoint(self, allows_writes):
        def function(x, after):
            y = tg.exp(x)
            z = y * y + tg.sin(y)
            if after:
                y = y * 1.0
            with tg.no_grad():
                y *= 2.0
            return z.sum()

        contexts = functools.partial(
            tg.utils.checkpoint.create_selective_checkpoint_contexts,
            ["exp"],
            allow_cache_entry_mutation=allows_writes,
        )

        def run(device, after):
            x = tg.tensor(X, device=device, requires_grad=True)
            tg.utils.checkpoint.checkpoint(
                function, x, after, use_reentrant=False, context_fn=contexts
            ).backward()
            return x.grad.cpu().numpy()

        np.testing.assert_allclose(run("cuda", True), run("cpu", True), 1e-14)
        if allows_writes:  # a kept result that was written to is computed again
            np.testing.assert_allclose(run("cuda", False), run("cpu", False), 1e-14)
        else:
            with pytest.raises(RuntimeError, match="has been mutated"):
                run("cuda", False)

    def test_compiled_functions(self):
        function = tg.njit(lambda x: x * 2.0)
        for call, count in ((function, 1), (tg.grad(function), 1), (tg.jvp(function), 2)):
            with pytest.raises(TypeError, match=r"arrays of the host: give it x.cpu\(\)"):
                call(*[leaf()] * count)

    def test_a_hook_frees_the_graph(self):
        x = tg.tensor(0.5, device="cuda", requires_grad=True)
        y = x.exp()
        z = y.exp()
        calls = []

        def hook(g):
            calls.append(1)
            if len(calls) == 1:
                z.backward()

        z.register_hook(hook)
        with pytest.raises(RuntimeError, match="backward through the graph a second time"):
            z.backward()

    def test_a_saved_output_that_is_written_to_is_named(self):
        class Double(tg.Function):
            @staticmethod
            def forward(ctx, x):
                y = x * 2.0
                ctx.save_for_backward(y)
                return y

            @staticmethod
            def backward(ctx, g):
                return g * ctx.saved_tensors[0]

        y = Double.apply(leaf())
        z = y.sum()
        y.add_(1.0)
        with pytest.raises(RuntimeError, match=r"output 0 of Double, is at version 1; expected"):
            z.backward()

    def test_checkpoint(self):
        x = leaf()
        y = tg.utils.checkpoint.checkpoint(lambda t: tg.sin(t) * t, x, use_reentrant=False)
        y.sum().backward()
        assert_equal(x.grad, np.sin(X) + X * np.cos(X))

    def test_gradcheck(self):
        x, w = leaf(), leaf(X.T.copy())
        assert tg.autograd.gradcheck(lambda a, b: tg.tanh(a @ b).sum(), (x, w))

    def test_transforms(self):
        x = tg.tensor(X[0], device="cuda")

        def f(t):
            return (t**3).sum()

        assert_equal(tg.grad(f)(x), 3 * X[0] ** 2)
        assert_equal(tg.hessian(f)(x), np.diag(6 * X[0]))
        assert_equal(tg.hvp(f)(x, tg.ones(3, device="cuda")), 6 * X[0])
        assert_equal(tg.jacrev(tg.exp)(x), np.diag(np.exp(X[0])))
        assert_equal(tg.jacfwd(tg.exp)(x), np.diag(np.exp(X[0])))
        value, tangent = tg.jvp(tg.sin)(x, tg.ones(3, device="cuda"))
        assert_equal(value, np.sin(X[0]))
        assert_equal(tangent, np.cos(X[0]))
        rows = tg.vmap(tg.grad(f))(tg.tensor(X, device="cuda"))
        assert_equal(rows, 3 * X**2)

    def test_nested_derivatives_of_a_transpose(self):
        def f(x):
            return tg.sum(tg.sin(x) * x)

        x = tg.transpose(tg.tensor(X, device="cuda"))
        total = tg.grad(lambda x: tg.sum(tg.grad(f)(x)))(x)
        assert_equal(total, tg.grad(lambda x: tg.sum(tg.grad(f)(x)))(X.T))
        assert_equal(tg.vmap(tg.grad(f), in_axes=1)(x), tg.vmap(tg.grad(f), in_axes=1)(X.T))

    def test_random_numbers_beside_parameters(self):
        found = []
        for device in ("cuda", "cpu"):
            x = leaf(np.abs(X), device)
            rng = tg.random.default_rng(0)
            z = rng.normal(x, x) + rng.uniform(-x, x) + rng.exponential(x)
            z.sum().backward()
            found.append((z.detach().cpu().numpy(), x.grad.cpu().numpy()))
        np.testing.assert_allclose(*[f[0] for f in found], 1e-12)
        np.testing.assert_allclose(*[f[1] for f in found], 1e-12)

    def test_single_precision_stays(self):
        x = leaf(dtype=np.float32)
        y = tg.sigmoid(x) * 2.0 + x**2
        assert y.dtype == np.float32
        y.sum().backward()
        assert x.grad.dtype == np.float32

    def test_data_of_another_device(self):
        x = leaf(device="cpu")
        x.data = tg.tensor(X, device="cuda")
        (x * x).sum().backward()
        assert_equal(x.grad, 2 * X)
        y = leaf(device="cpu") * 2.0
        with pytest.raises(RuntimeError, match="cannot take memory of"):
            y.data = tg.tensor(X, device="cuda")


class TestDeterministic:
    def test_sums_are_in_the_order_of_the_index(self):
        rng = np.random.default_rng(0)
        places = rng.integers(0, 3, 40)
        values = rng.standard_normal((40, 2)) * 10.0 ** rng.integers(-8, 8, (40, 1))
        expected = np.zeros((3, 2))
        np.add.at(expected, places, values)
        tg.use_deterministic_algorithms(True)
        try:
            found = tg.scatter_add(tg.tensor(values, device="cuda"), (3, 2), (places,))
            np.testing.assert_array_equal(found.cpu().numpy(), expected)
        finally:
            tg.use_deterministic_algorithms(False)
        found = tg.scatter_add(tg.tensor(values, device="cuda"), (3, 2), (places,))
        np.testing.assert_allclose(found.cpu().numpy(), expected)


class TestMemory:
    def test_blocks_are_used_again(self):
        gc.collect()
        x = DeviceArray.from_host(X)
        block = x.memory.block
        del x
        assert memory.POOL.nbytes >= 512
        y = DeviceArray.from_host(X[0])
        assert y.memory.block is block
        memory.POOL.clear()
        assert memory.POOL.nbytes == 0

    def test_out_of_memory(self, monkeypatch):
        class Full:
            calls = 0

            def device_array(self, *args):
                self.calls += 1
                raise RuntimeError("CUDA_ERROR_OUT_OF_MEMORY")

            def current_context(self):
                return self

            def get_memory_info(self):
                return self

            free = 7

        full = Full()
        monkeypatch.setattr(memory, "require", lambda: full)
        memory.POOL.clear()
        with pytest.raises(MemoryError, match=r"no memory on the device .* \(7 are free\)"):
            memory.POOL.take(1 << 40)
        assert full.calls == 2  # once more after all blocks were freed
        monkeypatch.undo()
        assert_equal(leaf() * 2.0, 2 * X)

    def test_a_view_keeps_memory(self):
        view = (leaf().detach() * 2.0)[1:]
        gc.collect()
        others = [tg.ones((2, 3), device="cuda") for _ in range(3)]
        assert_equal(view, 2 * X[1:])
        assert len(others) == 3
