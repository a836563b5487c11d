"""Operands with operators of their own, which ask NumPy and tensors to leave them to these."""

import operator

import numpy as np
import pytest

import tapegrad as tg

SYMBOLS = ["add", "sub", "mul", "truediv", "pow", "floordiv", "mod", "matmul", "and", "or", "xor"]
SYMBOLS += ["lshift", "rshift"]
COMPARISONS = {"lt": "gt", "le": "ge", "gt": "lt", "ge": "le", "eq": "eq", "ne": "ne"}


class Quantity:
    """What NumPy leaves alone."""

    __array_ufunc__ = None
    __hash__ = object.__hash__


class Silent:
    """The same, without operators."""

    __array_ufunc__ = None


for _name in [f"r{symbol}" for symbol in SYMBOLS] + [*COMPARISONS]:
    setattr(Quantity, f"__{_name}__", lambda self, other, name=_name: (name, other))


def function_of(symbol):
    return getattr(operator, f"{symbol}_" if symbol in ("and", "or") else symbol)


def tensors(symbol):
    bits = symbol in SYMBOLS[8:]
    for grad in (False, True):
        if not (bits and grad):
            yield tg.tensor([1, 2] if bits else [1.0, 2.0], requires_grad=grad)


@pytest.mark.parametrize("symbol", [*SYMBOLS, *COMPARISONS])
def test_they_are_asked(symbol):
    f = function_of(symbol)
    name = COMPARISONS.get(symbol, f"r{symbol}")
    assert f(np.ones(2, int), Quantity())[0] == name
    for t in tensors(symbol):
        found = f(t, Quantity())
        assert found[0] == name and found[1] is t
        if symbol not in COMPARISONS:
            with tg.no_grad():
                assert getattr(operator, f"i{symbol}")(t, Quantity())[0] == name


@pytest.mark.parametrize("symbol", SYMBOLS)
def test_others_are_refused(symbol):
    """Functions, and operands that have no operator."""
    for t in tensors(symbol):
        for f in (function_of(symbol), getattr(operator, f"i{symbol}")):
            with pytest.raises(TypeError, match="unsupported operand"), tg.no_grad():
                f(t, Silent())
        with pytest.raises((TypeError, ValueError)):
            function_of(symbol)(Silent(), t)
    for f in (tg.add, tg.multiply, tg.power, tg.matmul, tg.less):
        with pytest.raises((TypeError, ValueError)):
            f(tg.tensor([1.0, 2.0], requires_grad=True), Quantity())


MODES = {
    "forward": lambda f: tg.jvp(f)(tg.tensor([1.0, 2.0]), tg.tensor([1.0, 1.0])),
    "batched": lambda f: tg.vmap(f)(tg.tensor([1.0, 2.0])),
    "recorded": lambda f: tg.jit(f)(tg.tensor([1.0, 2.0])),
    "no_grad": lambda f: tg.no_grad()(f)(tg.tensor([1.0, 2.0], requires_grad=True)),
    "inference": lambda f: tg.inference_mode()(f)(tg.tensor([1.0, 2.0])),
}


@pytest.mark.parametrize("symbol", SYMBOLS[:8])
@pytest.mark.parametrize("mode", MODES)
def test_modes(mode, symbol):
    asked = []

    def f(x):
        x = tg.reshape(x, (-1,))
        name, other = function_of(symbol)(x, Quantity())
        asked.append(name)
        return tg.sum(other * 2.0)

    MODES[mode](f)
    assert set(asked) == {f"r{symbol}"}
