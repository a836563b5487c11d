"""Recorded functions of arguments on a device: kernels that are started again.

Each function is called for several arguments, since a value that a recording took for a constant is
right the first time. Expected values are those op by op.
"""

import re
import sys
import threading
from pathlib import Path

import numpy as np
import pytest
from interpreted import in_float32
from programs import SHAPES, Program
from writing_programs import WritingProgram, arguments

import tapegrad as tg
from tapegrad.ops.table.op import TABLE
from tapegrad.replay import on_device as on_device_module

sys.path.insert(0, str(Path(__file__).parents[1] / "ops"))
from cases import ALL, as_list, names_of

pytestmark = pytest.mark.skipif(not tg.cuda.is_available(), reason="there is no CUDA device")
RNG = np.random.default_rng(0)


def on_device(value):
    """The same with tensors on the device in place of arrays."""
    if isinstance(value, (list, tuple)):
        return type(value)(map(on_device, value))
    return tg.tensor(value, device="cuda") if isinstance(value, np.ndarray) else value


def on_host(value):
    """The same with arrays in place of tensors."""
    if isinstance(value, (list, tuple)):
        return [*map(on_host, value)]
    return value.detach().cpu().numpy() if isinstance(value, tg.Tensor) else value


def assert_equal(found, expected, rtol=1e-12):
    found, expected = on_host(found), on_host(expected)
    assert type(found) is type(expected) or not isinstance(found, list)
    if isinstance(found, list):
        assert len(found) == len(expected)
        for one, other in zip(found, expected, strict=True):
            assert_equal(one, other, rtol)
        return
    assert np.asarray(found).dtype == np.asarray(expected).dtype
    np.testing.assert_allclose(found, expected, rtol, 1e-12, equal_nan=True)


def is_recorded(jitted, *args):
    return not jitted.inspect(*args).startswith("op by op")


def check(function, *calls, recorded=True, rtol=1e-12):
    """Compare a recorded function with itself op by op, and its gradient."""
    jitted = tg.jit(function)
    for args in calls:
        given = on_device(args)
        assert_equal(jitted(*given), function(*map(tg.as_tensor, args)), rtol)
    assert is_recorded(jitted, *on_device(calls[0])) == recorded
    gradient = tg.value_and_grad(tg.jit(function))
    for args in calls:
        assert_equal(gradient(*on_device(args)), tg.value_and_grad(function)(*args), rtol)


def vectors(count=3, size=5, dtype=np.float64):
    return [(RNG.normal(size=size).astype(dtype),) for _ in range(count)]


# -- what is recorded ------------------------------------------------------------------------------


def loss(w, x, y):
    return tg.mean((tg.tanh(x @ w) - y) ** 2)


def of_loss():
    return RNG.normal(size=3), RNG.normal(size=(5, 3)), RNG.normal(size=5)


def test_value_and_gradient():
    check(loss, *(of_loss() for _ in range(3)))


def test_the_function_runs_once():
    count = []

    def noted(x):
        count.append(1)
        return tg.sum(tg.sin(x) * x)

    jitted = tg.jit(noted)
    for args in on_device(vectors()):
        jitted(*args)
        tg.grad(jitted)(*args)
    assert len(count) == 1


def test_gradients_leave_out_what_only_the_value_needs():
    def function(x, w):
        z = tg.sin(x) + w[:, None]
        return (z * z).sum(1).sum() + (tg.exp(w) * w).sum()

    jitted = tg.jit(function)
    ways = {"gradient": tg.grad(jitted, (0, 1)), "both": tg.value_and_grad(jitted, (0, 1))}
    args = [(RNG.normal(size=(4, 3)), RNG.normal(size=4)) for _ in range(3)]
    for x, w in args:
        expected = tg.grad(function, (0, 1))(x, w)
        assert_equal(ways["gradient"](*on_device((x, w))), expected)
        value, gradient = ways["both"](*on_device((x, w)))
        assert_equal(value, function(*map(tg.as_tensor, (x, w))))
        assert_equal(gradient, expected)
    text = jitted.inspect(*on_device(args[0]))
    counts = dict(re.findall(r"^(.*) 0 1: (\d+) kernels$", text, re.MULTILINE))
    assert counts.keys() == {"gradient", "value and gradient"}
    # the value has sums of both terms, and adds them
    assert int(counts["gradient"]) <= int(counts["value and gradient"]) - 3


def test_writes_to_parts_of_arrays_are_kept():
    def function(x, k):
        z = tg.zeros((4, 5), device="cuda")
        z[1] = x
        z[:, 2] = 3.0
        z[k] += x * x
        z[k] = z[k] * 2.0
        return (z * z).sum() + tg.cumsum(x, 0)[-1]

    k = np.array([3, 0, 3])
    jitted = tg.grad(tg.jit(function))
    for x in [RNG.normal(size=5) for _ in range(3)]:
        found = jitted(*on_device((x, k)))
        assert_equal(found, tg.grad(function)(*on_device((x, k))))


def test_many_functions_of_numbers_are_one_kernel():
    def chain(x):
        z = x
        for _ in range(15):
            z = tg.sin(z) * 1.01 + x
        return z

    jitted = tg.jit(chain)
    (x,) = vectors(1)[0]
    assert "value: 1 kernels" in jitted.inspect(tg.tensor(x, device="cuda"))
    check(lambda x: tg.sum(chain(x)), *vectors())


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_dtypes(dtype):
    check(lambda x: tg.sum(tg.exp(x) / (1 + x * x)), *vectors(dtype=dtype), rtol=1e-5)


def test_sizes_and_layouts():
    jitted = tg.jit(lambda x: tg.sum(tg.sin(x) * x[::-1]))
    whole = RNG.normal(size=(6, 4))
    for array in (whole, whole[1:], whole[:, 1], whole[::-2], whole.T, whole[:0]):
        x = tg.tensor(whole, device="cuda")
        shown = {6: x, 5: x[1:]}.get(len(array), tg.tensor(array, device="cuda"))
        expected = np.sum(np.sin(array) * array[::-1])
        for given in (shown, tg.tensor(array, device="cuda")):
            assert_equal(
                jitted(given), np.float64(np.sum(np.sin(on_host(given)) * on_host(given)[::-1]))
            )
        assert_equal(jitted(tg.tensor(array, device="cuda")), np.float64(expected))


def test_views_as_arguments():
    x = tg.tensor(RNG.normal(size=(4, 6)), device="cuda")
    jitted = tg.jit(lambda a: a * 2.0)
    for view in (x[1], x[2], x[3], x[:, 0][:4].reshape(4), x[1:3]):
        assert_equal(jitted(view), on_host(view) * 2.0)


def test_numbers_of_python():
    jitted = tg.jit(lambda x, s, n: x * s + n)
    (x,) = vectors(1)[0]
    for s, n in ((0.5, 1), (1.5, 3)):
        assert_equal(jitted(tg.tensor(x, device="cuda"), s, n), x * s + n)


def test_arrays_of_the_host_are_copied():
    jitted = tg.jit(lambda x, y: tg.sum(x * y))
    for _ in range(2):
        x, y = RNG.normal(size=(2, 4))
        given = tg.tensor(x, device="cuda"), y
        assert_equal(jitted(*given), np.float64(np.sum(x * y)))
        assert_equal(tg.grad(jitted)(*given), y)
        with pytest.raises(RuntimeError, match="same device"):
            tg.grad(jitted, 1)(*given)


def test_constants_and_tensors_from_outside():
    weights, factor = RNG.normal(size=5), tg.tensor(RNG.normal(size=5), device="cuda")
    check(lambda x: tg.sum(x * weights) + tg.sum(x * tg.tensor(on_host(factor))), *vectors())
    jitted = tg.jit(lambda x: x * weights + factor * tg.ones(5, device=x.device))
    for (x,) in vectors():
        assert_equal(jitted(tg.tensor(x, device="cuda")), x * weights + on_host(factor))
    check(lambda x: tg.sum(x.to(x.device) * 2.0), *vectors())


def test_nested_arguments_and_results():
    jitted = tg.jit(lambda p: {"sum": p["a"] + p["b"][0], "both": (p["a"], [p["b"][1]])})
    for _ in range(2):
        a, b, c = RNG.normal(size=(3, 4))
        found = jitted(on_device_dict({"a": a, "b": (b, c)}))
        assert_equal(found["sum"], a + b)
        assert_equal([*found["both"]], [a, [c]])


def on_device_dict(given):
    return {name: on_device(value) for name, value in given.items()}


def test_loops_and_branches():
    def rolled(x):
        def step(i, state):
            return tg.cond(i % 2 == 0, lambda s: tg.sin(s) + x, lambda s: s * 0.9, state)

        return tg.sum(tg.fori_loop(0, 6, step, x))

    def scanned(x):
        def step(state, row):
            state = tg.tanh(state * 0.5 + row)
            return state, state * row

        last, rows = tg.scan(step, tg.zeros_like(x[0]), x)
        return tg.sum(rows * 2.0) + tg.sum(last)

    check(lambda x: tg.sum(tg.fori_loop(0, 4, lambda i, s: tg.sin(s) + x, x)), *vectors())
    check(scanned, *vectors(size=(4, 3)))
    check(rolled, *vectors())
    check(lambda x: tg.sum(tg.cond(x[0] > 0, tg.sin, tg.cos, x)), *vectors(5), recorded=False)


# -- what is not -----------------------------------------------------------------------------------


def test_values_that_decide_are_read_in_each_call():
    def function(x):
        return tg.while_loop(lambda s: tg.sum(s) < 10.0, lambda s: s * 1.5, x)

    jitted = tg.jit(function)
    for scale in (0.1, 1.0, 5.0):
        x = np.abs(RNG.normal(size=4)) * scale + 0.1
        assert_equal(jitted(tg.tensor(x, device="cuda")), function(tg.as_tensor(x)))


def test_places_that_are_computed():
    jitted = tg.jit(lambda x, places: x[places] * 2.0)
    for places in ([0, 2, 1], [3, 3, 0], [4, 1, 1]):
        (x,) = vectors(1)[0]
        given = tg.tensor(x, device="cuda"), tg.tensor(np.array(places), device="cuda")
        assert_equal(jitted(*given), x[places] * 2.0)


def test_random_numbers_differ():
    jitted = tg.jit(lambda x, g: x + tg.random.normal(size=3, generator=g))
    with pytest.raises(TypeError):
        jitted(tg.tensor(np.zeros(3), device="cuda"), tg.random.Generator(0))
    plain = tg.jit(lambda x: x + tg.tensor(np.random.default_rng().normal(size=3)))  # a constant
    x = tg.tensor(np.zeros(3), device="cuda")
    assert_equal(plain(x), plain(x))


def test_a_recording_that_depends_on_values():
    with pytest.raises(tg.RecordingError, match=r"tapegrad\.where"):
        tg.jit(lambda x: x if x[0] > 0 else -x)(tg.tensor(np.ones(3), device="cuda"))


def test_arguments_on_several_devices():
    jitted = tg.jit(lambda x, y: x * y)
    x = tg.tensor(np.ones(3), device="cuda")
    with pytest.raises((RuntimeError, TypeError)):
        jitted(x, tg.tensor(np.ones(3)))
    assert_equal(jitted(x, x), np.ones(3))


def test_a_gradient_that_is_zero():
    def function(x, y):
        return tg.sum(x * 2.0)

    for _ in range(2):
        x, y = RNG.normal(size=3), RNG.normal(size=(2, 2))
        found = tg.value_and_grad(tg.jit(function), (1, 0))(*on_device((x, y)))
        assert_equal([*found], [*tg.value_and_grad(function, (1, 0))(x, y)])
    assert_equal(tg.grad(tg.jit(lambda x: tg.sum(tg.floor(x))))(*on_device((x,))), np.zeros(3))


def test_tensors_from_outside_on_another_device():
    there, here = tg.tensor(np.ones(3), device="cuda"), tg.tensor(np.ones(3))
    assert_equal(tg.jit(lambda x: x * here)(there), np.ones(3))  # a constant
    with pytest.raises(RuntimeError, match="same device"):
        tg.jit(lambda x: x * there)(here)
    for own, other in ((there, here), (here, there)):
        other.requires_grad_()
        with pytest.raises(RuntimeError, match="same device"):
            tg.jit(lambda x, other=other: x * other)(own.detach())


# -- memory ----------------------------------------------------------------------------------------


def test_results_keep_their_values():
    jitted = tg.jit(lambda x: (tg.sin(x), tg.sin(x)[1:], tg.sum(x), x, x[::-1], x))
    calls = vectors(4)
    found = [jitted(*on_device(args)) for args in calls]
    for (x,), results in zip(calls, found, strict=True):
        assert_equal([*results], [np.sin(x), np.sin(x)[1:], np.sum(x), x, x[::-1], x])


def test_results_are_not_views_of_arguments_or_each_other():
    jitted = tg.jit(lambda x: (x, x[1:], x * 2.0, tg.reshape(x * 2.0, (5, 1))))
    (x,) = on_device(vectors(1)[0])
    before = on_host(x)
    for _ in range(2):
        same, part, twice, column = jitted(x)
        same[:] = 7.0
        part[:] = 8.0
        twice[:] = 9.0
        assert_equal(x, before)
        assert_equal(column, (before * 2.0)[:, None])


def test_results_as_arguments():
    jitted = tg.jit(lambda x, y: (tg.sin(x) + y, x * y))
    x, y = RNG.normal(size=(2, 4))
    one, two = on_device((x, y))
    for _ in range(5):
        x, y = np.sin(x) + y, x * y
        one, two = jitted(one, two)
        assert_equal([one, two], [x, y])
    assert_equal(jitted(one, one), jitted.function(one, one))


def test_arguments_that_are_not_computed_yet():
    jitted = tg.jit(lambda x: tg.sum(x * x))
    for _ in range(3):
        (x,) = vectors(1)[0]
        given = tg.tensor(x, device="cuda")
        assert_equal(jitted(given * 2.0 + 1.0), np.float64(np.sum((2.0 * x + 1.0) ** 2)))


@pytest.mark.skipif(
    tg.cuda.is_available() and tg.cuda.device_info()[0].is_simulated,
    reason="numba simulates one kernel at a time",
)
def test_threads():
    jitted = tg.jit(loss)
    gradient = tg.grad(jitted)
    calls = [of_loss() for _ in range(6)]
    expected = [tg.grad(loss)(*args) for args in calls]
    found = {}

    def run(number):
        for _ in range(3):
            found[number] = gradient(*on_device(calls[number]))

    threads = [threading.Thread(target=run, args=(k,)) for k in range(len(calls))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for number, want in enumerate(expected):
        assert_equal(found[number], want)


# -- derivatives -----------------------------------------------------------------------------------


def test_backward_through_a_call():
    jitted = tg.jit(lambda w, x: (tg.tanh(x @ w), tg.sum(w * w), x > 0))
    found = []
    for device in ("cuda", "cpu"):
        numbers = np.random.default_rng(1)
        w = tg.tensor(numbers.normal(size=3), device=device, requires_grad=True)
        for _ in range(3):
            x = tg.tensor(numbers.normal(size=(4, 3)), device=device)
            out, square, test = jitted(w, x)
            assert not test.requires_grad
            (tg.sum(out * out) + 0.1 * square).backward()
            with tg.no_grad():
                w -= 0.1 * w.grad
            w.grad = None
        found.append(w)
    assert_equal(*found)


def test_a_backward_pass_that_reads_values(monkeypatch):
    """The value is still computed by kernels that are started again."""
    gradients = on_device_module.gradients_of

    def reading(*args):
        found = gradients(*args)
        assert found[0].cpu().numpy().shape == (4,)
        return found

    monkeypatch.setattr(on_device_module, "gradients_of", reading)
    jitted = tg.jit(lambda x: tg.sum(tg.sin(x)))
    for _ in range(3):
        x = tg.tensor(RNG.normal(size=4), device="cuda", requires_grad=True)
        jitted(x).backward()
        assert_equal(x.grad, np.cos(on_host(x)))
    assert "value: 1 kernels" in jitted.inspect(x)
    assert "pullback" not in jitted.inspect(x)


def test_parameters_from_outside():
    found = []
    for device in ("cuda", "cpu"):
        numbers = np.random.default_rng(1)
        w = tg.tensor(numbers.normal(size=3), device=device, requires_grad=True)
        jitted = tg.jit(lambda x, w=None, own=w: tg.sum(tg.sin(x * own)))
        for _ in range(3):
            jitted(tg.tensor(numbers.normal(size=3), device=device)).backward()
            with tg.no_grad():
                w -= 0.1 * w.grad
        found += [w, w.grad]
    assert_equal(found[:2], found[2:])


def test_second_order():
    def function(x):
        return tg.sum(tg.sin(x) * x**2)

    jitted = tg.jit(function)
    for (x,) in vectors():
        given, v = tg.tensor(x, device="cuda"), np.cos(x)
        found = tg.hvp(jitted)(given, tg.tensor(v, device="cuda"))
        assert_equal(found, tg.hvp(function)(x, v))
        assert_equal(tg.hessian(jitted)(given), tg.hessian(function)(x))
        leaf = given.requires_grad_()
        (g,) = tg.autograd.grad(jitted(leaf), leaf, create_graph=True)
        (again,) = tg.autograd.grad(tg.sum(g * g), leaf)
        h = tg.hessian(function)(x)
        assert_equal(again, 2.0 * h @ tg.grad(function)(x), 1e-10)


def test_other_transforms():
    def function(x):
        return tg.sum(tg.exp(x) * x)

    (x,) = vectors(1)[0]
    for transform in (tg.grad, tg.hessian, tg.jacobian):
        for transformed in (tg.jit(transform(function)), transform(tg.jit(function))):
            for scale in (1.0, 2.0):
                given = tg.tensor(x * scale, device="cuda")
                assert_equal(transformed(given), transform(function)(x * scale))
    batch = RNG.normal(size=(3, 5))
    found = tg.vmap(tg.jit(function))(tg.tensor(batch, device="cuda"))
    assert_equal(found, np.sum(np.exp(batch) * batch, 1))
    tangent = tg.jvp(tg.jit(function))(*on_device((x, np.cos(x))))
    assert_equal([*tangent], [*tg.jvp(function)(x, np.cos(x))])


# -- many functions --------------------------------------------------------------------------------


@pytest.mark.compiled
@pytest.mark.parametrize("first", range(0, 30, 10))
def test_random_functions(first):
    recorded = 0
    for seed in range(first, first + 10):
        program = Program(seed)
        jitted = tg.jit(program)
        gradient = tg.value_and_grad(tg.jit(program), (0, 1, 2, 3, 4))
        plain = tg.value_and_grad(program, (0, 1, 2, 3, 4))
        for call in range(2):
            numbers = np.random.default_rng(1000 * call + seed)
            args = [numbers.normal(size=shape) for shape in SHAPES]
            given = on_device(args)
            assert_equal(jitted(*given), program(*map(tg.tensor, args)), 1e-9)
            assert_equal([*gradient(*given)], [*plain(*args)], 1e-9)
        recorded += is_recorded(jitted, *given)
    assert recorded >= 8


@pytest.mark.compiled
@pytest.mark.parametrize("first", range(0, 30, 10))
def test_random_functions_that_write(first):
    recorded = 0
    for seed in range(first, first + 10):
        program = WritingProgram(seed)
        jitted = tg.jit(program.function)
        for call in range(2):
            args = arguments(seed, call)
            try:
                tensors = [tg.tensor(a) if isinstance(a, np.ndarray) else a for a in args]
                expected = program.function(*tensors)
            except IndexError:
                with pytest.raises(IndexError):
                    jitted(*on_device(args))
                continue
            try:
                found = jitted(*on_device(args))
            except (RuntimeError, TypeError):  # op by op, tensors of the host are not moved
                assert not is_recorded(jitted, *on_device(args))
                continue
            assert_equal(found, expected, 1e-10)
            recorded += is_recorded(jitted, *on_device(args))
    assert recorded >= 2


@pytest.mark.compiled
def test_float32_of_random_functions():
    for seed in range(10):
        program = Program(seed)
        program.constant = in_float32(program.constant)
        jitted = tg.jit(program)
        for call in range(2):
            numbers = np.random.default_rng(1000 * call + seed)
            args = in_float32([numbers.normal(size=shape) for shape in SHAPES])
            found, expected = jitted(*on_device(args)), program(*on_device(args))
            assert found.dtype == expected.dtype
            np.testing.assert_allclose(on_host(found), on_host(expected), 1e-4)


@pytest.mark.parametrize("case", ALL, ids=names_of)
def test_op(case):
    """Twice, the second time for other numbers where they are floats."""
    name, args, given = case
    op = TABLE[name]

    def function(*leaves):
        return op.public(*leaves, **given)

    jitted = tg.jit(function)
    for scale in (1.0, 0.75):
        scaled = [
            a * scale if isinstance(a, np.ndarray) and a.dtype.kind == "f" else a for a in args
        ]
        tensors = [on_device(a) for a in scaled]
        try:
            expected = as_list(function(*tensors))
        except (TypeError, ValueError, np.linalg.LinAlgError) as error:
            with pytest.raises(type(error)):
                jitted(*tensors)
            continue
        assert_equal(as_list(jitted(*tensors)), [*expected])
