"""What errors say to write where a tensor that requires grad cannot go."""

import numpy as np
import pytest
import scipy.fft
import scipy.integrate
import scipy.interpolate
import scipy.linalg
import scipy.ndimage
import scipy.signal
import scipy.special
import scipy.stats
from leaves import leaf

import tapegrad as tg
from tapegrad.eager.ways_out import OF_SCIPY

X = np.array([0.3, 0.7, 1.9])
A = np.eye(3) * 2.0 + 0.1
NO_DERIVATIVE = "it has no derivative in tapegrad: write it with other functions"


def stored(target, value, index):
    target[index] = value


# what fails, and what its text names
CONVERSIONS = {
    "np.array": (lambda t, _: np.array([t[0], t[1]]), r"by tg\.array\(\[t0, t1\]\)"),
    "np.asarray": (lambda t, _: np.asarray(t), r"by tg\.array\(\[t0, t1\]\)"),
    "np.int64": (lambda t, _: np.int64(t[0]), r"t\.item\(\), float\(t\) or int\(t\)"),
    "np.float32": (lambda t, _: np.float32(t[0]), r"t\.item\(\), float\(t\) or int\(t\)"),
    "slice": (lambda t, _: stored(np.zeros(3), t, np.s_[:]), r"write to tg\.zeros\(shape\), or to"),
    "slices": (lambda _, a: stored(np.zeros((3, 3)), a, np.s_[:3, :3]), r"tg\.array\(array\)"),
    "np.r_": (lambda t, _: np.r_[t, 0.0], r"for tensors there are tg\.r_ and tg\.c_\."),
    "np.c_": (lambda t, _: np.c_[t, t], r"for tensors there are tg\.r_ and tg\.c_\."),
    "np.full": (lambda t, _: np.full(3, t[0]), r"for tensors there is tg\.full\."),
    "np.testing": (
        lambda t, _: np.testing.assert_allclose(t, X),
        r"numpy\.testing\.assert_allclose takes arrays: t\.detach\(\)\.",
    ),
    "np.vectorize": (lambda t, _: np.vectorize(lambda v: v)(t), r"takes arrays: t\.detach\(\)\."),
    "linalg.cho_solve": (
        lambda t, a: scipy.linalg.cho_solve((a, True), t),
        r"scipy\.linalg\.cho_solve takes arrays; for tensors there is tg\.linalg\.cho_solve\.",
    ),
    "linalg.cholesky": (lambda _, a: scipy.linalg.cholesky(a), r"there is tg\.linalg\.cholesky\."),
    "linalg.svd": (lambda _, a: scipy.linalg.svd(a), r"there is tg\.linalg\.svd\."),
    "linalg.expm": (lambda _, a: scipy.linalg.expm(a), r"there is tg\.linalg\.expm\."),
    "fft.rfft": (lambda t, _: scipy.fft.rfft(t), r"there is tg\.fft\.rfft\."),
    "logsumexp": (lambda t, _: scipy.special.logsumexp(t), r"there is tg\.special\.logsumexp\."),
    "trapezoid": (lambda t, _: scipy.integrate.trapezoid(t), r"there is tg\.trapezoid\."),
    "convolve": (lambda t, _: scipy.signal.convolve(t, t), r"there is tg\.convolve\."),
    "fft.dct": (lambda t, _: scipy.fft.dct(t), rf"scipy\.fft\.dct takes arrays; {NO_DERIVATIVE}"),
    "ndimage": (
        lambda t, _: scipy.ndimage.gaussian_filter(t, 1.0),
        rf"scipy\.ndimage\.gaussian_filter takes arrays; {NO_DERIVATIVE}",
    ),
    "CubicSpline": (
        lambda t, _: scipy.interpolate.CubicSpline(X, t),
        rf"scipy\.interpolate\.CubicSpline takes arrays; {NO_DERIVATIVE}",
    ),
    "stats": (lambda t, _: scipy.stats.norm.pdf(t), r"for tensors there is tg\.stats\."),
}


@pytest.mark.parametrize("name", CONVERSIONS)
def test_conversions(name):
    call, text = CONVERSIONS[name]
    with pytest.raises(RuntimeError, match=rf"^Can't call numpy\(\) on Tensor .*{text}") as caught:
        call(leaf(X), leaf(A))
    assert len(str(caught.value)) < 220


def test_pandas():
    pandas = pytest.importorskip("pandas")
    with pytest.raises(RuntimeError, match=r"pandas computes with arrays.*df\.to_numpy\(\) @ t"):
        pandas.DataFrame(A) @ leaf(X)


def test_matplotlib():
    image = pytest.importorskip("matplotlib.image")
    with pytest.raises(RuntimeError, match=r"matplotlib draws arrays: t\.detach\(\)"):
        image.imsave("/nowhere", leaf(A))


@pytest.mark.parametrize("name", OF_SCIPY)
def test_functions_of_scipy(name):
    """The text names a function of tensors, which is the same."""
    arguments, text = OF_SCIPY[name]
    ufunc = getattr(scipy.special, name)
    given = dict.fromkeys(arguments.split(", "), X) | {"x": np.array([0.1, 0.5, 0.8])}
    given = {key: 2.0 if key == "n" else value for key, value in given.items()}
    with pytest.raises(TypeError, match=rf"^scipy\.special\.{name} of a tensor .* is ") as caught:
        ufunc(*(leaf(value) if key == "x" else value for key, value in given.items()))
    assert str(caught.value).endswith(text)
    tensors = {key: leaf(value) if key == "x" else value for key, value in given.items()}
    found = eval(text, {"tg": tg}, tensors)
    np.testing.assert_allclose(found.detach(), ufunc(*given.values()), rtol=1e-10)
    assert found.requires_grad


@pytest.mark.parametrize("name", ["hyp2f1", "struve", "zeta", "lambertw", "wrightomega"])
def test_functions_of_scipy_without_a_replacement(name):
    others = {"hyp2f1": (1.0, 2.0, 3.0), "struve": (1.0,), "zeta": (2.0,)}.get(name, ())
    text = rf"^scipy\.special\.{name} of a tensor that requires grad .*: {NO_DERIVATIVE}"
    with pytest.raises(TypeError, match=text):
        getattr(scipy.special, name)(*others, leaf(X))


class TestReadOnly:
    """A write to memory that is read-only says why it is."""

    WRITES = (
        lambda t: t.add_(1.0),
        lambda t: t.copy_(tg.ones(2)),
        lambda t: stored(t, 1.0, 0),
        lambda t: t.zero_(),
    )

    @pytest.mark.parametrize("write", WRITES)
    def test_an_array_that_is(self, write):
        array = np.ones(2)
        array.flags.writeable = False
        text = "assignment destination is read-only: the array that it was made of is; write to a"
        with pytest.raises(ValueError, match=text):
            write(tg.as_tensor(array))

    @pytest.mark.parametrize("write", WRITES)
    def test_elements_at_one_place(self, write):
        text = "read-only: several of its elements are at one place in memory"
        with pytest.raises((ValueError, RuntimeError), match=f"{text}|single memory location"):
            write(tg.as_tensor(np.broadcast_to(np.ones(1), (2,))))


@pytest.mark.parametrize(
    ("ufunc", "text"),
    [
        (np.add, r"add to a tensor, tg\.zeros\(shape\)"),
        (np.subtract, r"only numpy\.add\.at has a derivative"),
    ],
)
def test_ufunc_at_of_an_array(ufunc, text):
    with pytest.raises(TypeError, match=rf"^numpy\.{ufunc.__name__}\.at .*{text}"):
        ufunc.at(np.zeros(3), [0, 1, 2], leaf(X))
