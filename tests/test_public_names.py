"""What `dir` shows, and what a type checker says of a user's code."""

import textwrap

import pytest

import tapegrad as tg

USER_CODE = """
    import numpy as np
    import tapegrad as tg

    x: tg.Tensor = tg.tensor([1.0, 2.0], requires_grad=True)
    y = (tg.sin(x) * x + 1.0).sum() + x.mean()
    y.backward()
    a = tg.linalg.inv(np.eye(2)) @ x
    b = tg.fft.rfft(x)
    c = tg.special.gammaln(x)
    gradient = tg.grad(lambda z: tg.sum(z**2))(np.ones(2))
    compiled = tg.njit(lambda z: z * z)

    assert x.grad is not None
    with tg.no_grad(), tg.autograd.set_multithreading_enabled(False):
        x -= 0.1 * x.grad

    class Twice(tg.Function):
        @staticmethod
        def forward(ctx: tg.autograd.function.FunctionCtx, z: tg.Tensor) -> tg.Tensor:
            ctx.save_for_backward(z)
            return z * 2

    twice: tg.Tensor = Twice.apply(x)
"""


def test_dir_shows_what_users_need():
    shown = dir(tg)
    assert {"njit", "stop_gradient", "TransformError", "sin", "linalg", "fft", "special"} <= {
        *shown
    }
    assert not [name for name in shown if name.startswith("_") and name != "__version__"]
    assert not {"dispatch", "methods", "numeric", "inplace", "pytrees"} & {*shown}
    assert all(hasattr(tg, name) for name in shown)


@pytest.mark.parametrize("module", [tg.linalg, tg.fft, tg.special])
def test_names_of_modules(module):
    assert all(callable(getattr(module, name)) for name in module.__all__)


def test_types_of_users_code(tmp_path):
    api = pytest.importorskip("mypy.api")
    path = tmp_path / "user_code.py"
    path.write_text(textwrap.dedent(USER_CODE))
    options = ["--strict", "--config-file=", f"--cache-dir={tmp_path}", "--follow-imports=silent"]
    found, errors, status = api.run([*options, "--ignore-missing-imports", str(path)])
    assert status == 0, found + errors
