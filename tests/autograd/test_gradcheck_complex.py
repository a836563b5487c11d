"""`gradcheck` of functions of complex numbers."""

import numpy as np
import pytest
from functions import make
from leaves import leaf

import tapegrad as tg
from tapegrad.autograd import gradcheck, gradgradcheck
from tapegrad.autograd.gradcheck import GradcheckError

both_modes = pytest.mark.parametrize("fast", [False, True], ids=["slow", "fast"])

Z = [1.0 + 2.0j, 0.5 - 1.0j]


def numpy_function(forward, backward):
    """A Function of plain arrays; backward takes (cotangent, argument)."""

    def run(ctx, x):
        ctx.save_for_backward(x)
        return tg.tensor(forward(x.detach().numpy()))

    def run_backward(ctx, g):
        (x,) = ctx.saved_tensors
        return tg.tensor(backward(g.detach().numpy(), x.detach().numpy()))

    return make(run, run_backward).apply


def z_leaf(dtype=np.complex128):
    return leaf(Z, dtype)


square = numpy_function(lambda z: z * z, lambda g, z: g * np.conj(2 * z))
not_conjugate = numpy_function(lambda z: z * z, lambda g, z: g * 2 * z)
conjugate = numpy_function(np.conj, lambda g, z: np.conj(g))
modulus = numpy_function(np.abs, lambda g, z: g * z / np.abs(z))
turn = numpy_function(
    lambda x: np.exp(1j * x), lambda g, x: (g * np.conj(1j * np.exp(1j * x))).real
)


class TestRightGradients:
    """A gradient is that of the real output: along the real part, plus 1j along the imaginary."""

    @both_modes
    @pytest.mark.parametrize("f", [square, conjugate, modulus, lambda z: square(conjugate(z))])
    def test_of_a_complex_input(self, f, fast):
        assert gradcheck(f, z_leaf(), fast_mode=fast) is True

    @both_modes
    def test_of_a_real_input(self, fast):
        assert gradcheck(turn, leaf([0.5, 1.5]), fast_mode=fast) is True

    @both_modes
    def test_mixed_outputs(self, fast):
        assert gradcheck(lambda z: (modulus(z), square(z)), z_leaf(), fast_mode=fast)

    @both_modes
    def test_mixed_inputs(self, fast):
        assert gradcheck(lambda z, x: (square(z), turn(x)), (z_leaf(), leaf([0.5])), fast_mode=fast)

    @both_modes
    @pytest.mark.parametrize("f", [lambda z: z * z, lambda z: z * 2j + 1, lambda z: (z * z).sum()])
    def test_ops(self, f, fast):
        assert gradcheck(f, z_leaf(), fast_mode=fast)

    def test_single_precision_warns(self):
        with pytest.warns(UserWarning, match="Input #0 requires gradient and is not a double"):
            assert gradcheck(lambda z: z * 2, z_leaf(np.complex64), eps=1e-2, atol=1e-2)

    @both_modes
    def test_second_derivatives(self, fast):
        assert gradgradcheck(lambda z: z * z * z, z_leaf(), fast_mode=fast)


class TestWrongGradients:
    """A failure says which part of a complex output was considered."""

    @both_modes
    def test_not_conjugate(self, fast):
        text = (
            "^While considering the imaginary part of complex outputs only, "
            "Jacobian mismatch for output 0 with respect to input 0,\n"
        )
        with pytest.raises(GradcheckError, match=text):
            gradcheck(not_conjugate, z_leaf(), fast_mode=fast)
        assert not gradcheck(not_conjugate, z_leaf(), fast_mode=fast, raise_exception=False)

    def test_both_jacobians_are_complex(self):
        with pytest.raises(GradcheckError) as caught:
            gradcheck(not_conjugate, leaf([1.0 + 2.0j], np.complex128))
        assert "\nnumerical:tensor([[4.+2.j]]" in str(caught.value)
        assert "\nanalytical:tensor([[-4.+2.j]]" in str(caught.value)

    @both_modes
    def test_only_the_real_part(self, fast):
        # right for the imaginary part of the output, whose cotangents are imaginary
        f = numpy_function(lambda z: z * 1.0, lambda g, z: 2 * g.real + 1j * g.imag)
        with pytest.raises(GradcheckError, match=r"^While considering the real part of complex"):
            gradcheck(f, z_leaf(), fast_mode=fast)

    @both_modes
    def test_a_real_output(self, fast):
        f = numpy_function(np.abs, lambda g, z: g * np.conj(z) / np.abs(z))
        with pytest.raises(GradcheckError, match=r"^Jacobian mismatch for output 0 with respect"):
            gradcheck(f, z_leaf(), fast_mode=fast)

    @both_modes
    def test_a_real_output_beside_a_complex_one(self, fast):
        f = numpy_function(np.abs, lambda g, z: g * np.conj(z) / np.abs(z))
        with pytest.raises(GradcheckError, match=r"^Jacobian mismatch for output 1 with respect"):
            gradcheck(lambda z: (square(z), f(z)), z_leaf(), fast_mode=fast)

    @both_modes
    def test_an_output_without_gradients(self, fast):
        with pytest.raises(GradcheckError, match="expected to be zero"):
            gradcheck(lambda z: z.detach() * 1j, z_leaf(), fast_mode=fast)
