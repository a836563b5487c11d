"""dtypes that have no derivatives: the text names the argument, the dtype, and a conversion."""

import numpy as np
import pytest

import tapegrad as tg

DTYPES = {
    ">f8": "the bytes are in another order than the machine's: convert by x.astype('float64')",
    ">f4": "the bytes are in another order than the machine's: convert by x.astype('float32')",
    ">c16": "the bytes are in another order than the machine's: convert by x.astype('complex128')",
    "longdouble": "convert by x.astype('float64')",
    "clongdouble": "convert by x.astype('complex128')",
    "float16": "convert by x.astype('float32')",
}
if np.dtype("longdouble") == np.dtype("float64"):
    del DTYPES["longdouble"], DTYPES["clongdouble"]
dtypes = pytest.mark.parametrize("dtype", DTYPES)


def total(v):
    return (v * v).sum()


@dtypes
@pytest.mark.parametrize("transform", [tg.grad, tg.jacobian, tg.hessian, tg.jacfwd])
@pytest.mark.parametrize("wrap", [lambda f: f, tg.jit], ids=["tensors", "jit"])
def test_arguments_of_transforms(wrap, transform, dtype):
    with pytest.raises(TypeError, match=r"argument 0 has dtype .*expected float32") as caught:
        transform(wrap(total))(np.ones(2, dtype))
    assert DTYPES[dtype] in str(caught.value)


@dtypes
def test_leaves(dtype):
    with pytest.raises(
        RuntimeError, match=r"^Only Tensors of floating point and complex"
    ) as caught:
        tg.tensor(np.ones(2, dtype), requires_grad=True)
    assert DTYPES[dtype] in str(caught.value)


@dtypes
def test_results(dtype):
    t = tg.tensor([1.0, 2.0], requires_grad=True)
    with pytest.raises(TypeError, match=r"^astype: cannot differentiate a result of") as caught:
        t.astype(dtype)
    assert DTYPES[dtype] in str(caught.value)


@dtypes
def test_the_conversion(dtype):
    x = np.array([1.0, 2.0], dtype)
    (name,) = [
        part for part in DTYPES[dtype].split("'") if part[:1] in "fc" and part[-1:].isdigit()
    ]
    found = tg.grad(lambda v: tg.real(total(v)))(x.astype(name))
    assert found.dtype == name
    np.testing.assert_array_equal(found, [2.0, 4.0])
