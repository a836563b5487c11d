"""Functions and derivatives in other processes."""

import copy
import multiprocessing
import pickle
import subprocess
import sys
import textwrap
from concurrent.futures import ProcessPoolExecutor

import joblib
import numpy as np
import pytest

import tapegrad as tg

POINT, ALONG = np.array([1.0, 2.0]), np.array([1.0, -1.0])


def eager(x):
    return (x * x).sum() * x[0]


@tg.njit
def compiled(x):
    return (x * x).sum() * x[0]


@tg.njit
def ruled(x):
    return x * x


@tg.jit
def jitted(x):
    return (x * x).sum() * x[0]


@tg.grad
def slope(x):
    return (x * x).sum() * x[0]


@ruled.defvjp
def ruled_vjp(x, z, g):
    return (7.0 * g,)  # not the derivative, so that it shows which one is used


def seven(x):
    return ruled(x)


compiled_seven = tg.njit(seven)
VECTOR = {
    "gradient": (tg.grad, (POINT,)),
    "value and gradient": (tg.value_and_grad, (POINT,)),
    "gradients": (lambda f: tg.value_and_grad(f, (0,)), (POINT,)),
    "Hessian": (tg.hessian, (POINT,)),
    "Jacobian": (lambda f: tg.jacobian(f, 0), (POINT,)),
    "Hessian product": (tg.hvp, (POINT, ALONG)),
    "tangent": (tg.jvp, (POINT, ALONG)),
    "gradient of a product": (lambda f: tg.jvp(tg.grad(f)), (POINT, ALONG)),
}
FUNCTIONS = {"eager": eager, "compiled": compiled, "jitted": jitted}


def call(f, args):
    return f(*args)


def same(found, expected):
    if isinstance(expected, tuple):
        assert isinstance(found, tuple)
        for one, two in zip(found, expected, strict=True):
            same(one, two)
    else:
        np.testing.assert_array_equal(found, expected)


@pytest.fixture(scope="module", params=["fork", "spawn"])
def pool(request):
    context = multiprocessing.get_context(request.param)
    with ProcessPoolExecutor(1, mp_context=context) as pool:
        yield pool


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
@pytest.mark.parametrize("kind", FUNCTIONS)
@pytest.mark.parametrize("name", VECTOR)
def test_in_a_pool_of_processes(pool, name, kind):
    make, args = VECTOR[name]
    derivative = make(FUNCTIONS[kind])
    same(pool.submit(call, derivative, args).result(timeout=120), derivative(*args))


@pytest.mark.parametrize("kind", FUNCTIONS)
@pytest.mark.parametrize("name", VECTOR)
def test_pickle_in_the_same_process(name, kind):
    make, args = VECTOR[name]
    derivative = make(FUNCTIONS[kind])
    again = pickle.loads(pickle.dumps(derivative))
    same(again(*args), derivative(*args))
    if kind == "compiled":
        assert again is derivative  # nothing is compiled twice
    same(copy.deepcopy(derivative)(*args), derivative(*args))


@pytest.mark.parametrize("function", [compiled, jitted, slope])
def test_functions_are_found_by_name(function):
    assert pickle.loads(pickle.dumps(function)) is function
    assert copy.copy(function) is function
    assert len(pickle.dumps(function)) < 100


def test_rules_go_along(pool):
    """A function that has no name in a module takes its rules with it."""
    assert tg.grad(compiled_seven)(3.0) == 7.0
    again = pool.submit(call, tg.grad(compiled_seven), (3.0,)).result(timeout=120)
    assert again == 7.0


def test_joblib():
    for f in (tg.grad(eager), tg.grad(compiled), tg.grad(lambda x: (x * x).sum())):
        found = joblib.Parallel(2, backend="loky")(joblib.delayed(f)(k * POINT) for k in (1.0, 2.0))
        same(tuple(found), (f(POINT), f(2.0 * POINT)))


@pytest.mark.filterwarnings("ignore")  # of the cluster
def test_dask_cluster():
    from distributed import Client, LocalCluster

    with (
        LocalCluster(n_workers=1, threads_per_worker=1, dashboard_address=None) as cluster,
        Client(cluster) as client,
    ):
        for f in (tg.grad(eager), tg.hessian(compiled)):
            same(client.submit(f, POINT).result(timeout=120), f(POINT))


PROGRAM = """
import pickle, subprocess, sys
import cloudpickle
import numpy as np
import tapegrad as tg

@tg.njit
def half(x):
    return 0.5 * (x * x).sum()

@tg.njit
def cube(x):
    return x * x * x

@cube.defvjp
def rule(x, z, g):
    return (5.0 * g,)

def plain(x):
    return cube(x[0]) * half(x)

@tg.jit
def jitted(x):
    return cube(x) * 2.0

@tg.jit
def calls_another(x):
    return jitted(x) + x

@tg.grad
def slope(x):
    return (x * x).sum()

f = tg.njit(plain)
made = [jitted, calls_another, slope]
made += [tg.grad(f), tg.value_and_grad(half), tg.hessian(half), tg.grad(lambda x: (x * x).sum())]
text = "import sys, pickle, numpy as np; x = np.array([1.0, 2.0])\\n"
text += "for f in pickle.load(sys.stdin.buffer): print(f(x))"
own = [f(np.array([1.0, 2.0])) for f in pickle.loads(pickle.dumps(made[:3]))]
assert [*map(str, own)] == [str(f(np.array([1.0, 2.0]))) for f in made[:3]]
there = subprocess.run(
    [sys.executable, "-c", text], input=cloudpickle.dumps(made), stdout=subprocess.PIPE, check=True
)
here = "".join(f"{f(np.array([1.0, 2.0]))}\\n" for f in made)
assert there.stdout.decode() == here, (there, here)
"""


def test_cloudpickle_takes_functions_of_the_program_itself(tmp_path):
    path = tmp_path / "program.py"
    path.write_text(textwrap.dedent(PROGRAM))
    done = subprocess.run([sys.executable, str(path)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_a_transform_of_a_method():
    class Model:
        scale = 3.0

        def loss(self, x):
            return self.scale * (x * x).sum()

        slope = tg.grad(loss, argnums=1)

    np.testing.assert_array_equal(Model().slope(POINT), 6.0 * POINT)
    assert repr(Model.slope).startswith("<grad of ")
    assert Model.slope.__name__ == "loss"
