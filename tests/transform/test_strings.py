"""Strings in functions are data, also those that look like generated code."""

import pytest
from check import check, module

import tapegrad as tg

TEXTS = [
    "cache=True",
    " in numba.prange(",
    "numba.prange",
    "# end\n",
    '# tapegrad: {"entry": 0}\n',
    "runtime.matters(x)",
    "np.zeros(x_bar)",
    "tape",
    "'\"\\{x}%s\f\u2028",
]
LOOPS = ["range(1)", "tg.checkpointed(range(1))", "numba.prange(1)"]


@pytest.mark.parametrize("loop", LOOPS)
def test_compared(loop):
    branches = [
        f"        if mode == {text!r}:\n            x = {k + 2}.0 * x * x\n"
        for k, text in enumerate(TEXTS)
    ]
    chosen = in_loop("mode", loop, branches)
    gradient = tg.value_and_grad(chosen)
    for k, text in enumerate(TEXTS):
        assert chosen(3.0, text) == 9.0 * (k + 2)
        assert gradient(3.0, text) == (9.0 * (k + 2), 6.0 * (k + 2))
    assert gradient(3.0, "another") == (3.0, 1.0)


@pytest.mark.parametrize("loop", LOOPS)
def test_raised(loop):
    branches = [
        f"        if k == {k}:\n            raise ValueError({text!r})\n"
        for k, text in enumerate(TEXTS)
    ]
    pushed = tg.jvp(in_loop("k", loop, branches))
    for k, text in enumerate(TEXTS):
        with pytest.raises(ValueError) as caught:
            pushed(3.0, k, 1.0)
        assert caught.value.args == (text,)
    assert pushed(3.0, -1, 1.0) == (3.0, 1.0)


def in_loop(argument, loop, branches):
    """A function of x and another argument, with branches in a loop."""
    return module(
        "import numba\nimport tapegrad as tg\n"
        f"@tg.njit\ndef f(x, {argument}):\n    for _ in {loop}:\n{''.join(branches)}    return x\n"
    )


NESTED = '''
import tapegrad as tg

if True:
    class Holder:
        @tg.njit
        def f(x):
            """Square
of a number
"""
            text = """two
            lines"""
            return len(text) * x * x

f = Holder.f
'''


def test_lines_with_another_indentation():
    """Of docstrings and strings; what is in them is not moved."""
    f = module(NESTED)
    value, gradient = tg.value_and_grad(f)(3.0)
    assert (value, gradient) == (9.0 * 21, 6.0 * 21)
    check(f, 0.7, compiled=False)
