"""Settings of the whole test suite."""

import os

import numpy as np
import pytest
from hypothesis import settings

import tapegrad as tg
from tapegrad.testing import check_grads

# On a build machine the generated cases are the same every time; elsewhere they are new ones.
settings.register_profile("build", derandomize=True, deadline=None)
settings.register_profile("default", deadline=None)
settings.load_profile("build" if os.environ.get("CI") else "default")


@pytest.fixture
def agrees_with_numpy():
    """What asserts that a NumPy function of tensors has NumPy's values, and right gradients."""

    def check(f, x, order=1):
        expected = f(x)
        found = f(tg.tensor(x, requires_grad=True))
        assert isinstance(found, tg.Tensor)
        assert found.requires_grad
        assert found.shape == np.shape(expected)
        np.testing.assert_allclose(found.detach(), expected, rtol=1e-13, atol=1e-15)
        check_grads(f, [x], order=order)

    return check
