"""The programs of `benchmarks/programs/fields`, op by op, beside central differences."""

import numpy as np
import pytest

from benchmarks.programs.fields import PROGRAMS, as_numbers, of_tapegrad, parts_of

STEPS = (1e-5, 1e-7)
"""The smaller one is for programs with many kinks, of which the other steps over some."""


@pytest.fixture(scope="module")
def library():
    return of_tapegrad(jit=False)


@pytest.mark.parametrize("name", PROGRAMS)
def test_value_and_gradient(library, name):
    program = PROGRAMS[name]
    arrays = program.arrays()
    numbers = program.argnums if isinstance(program.argnums, tuple) else (program.argnums,)
    value, gradient = as_numbers(library.prepare(program)())
    rng = np.random.default_rng(0)
    directions = {k: rng.standard_normal(arrays[k].shape) for k in numbers}
    for k in numbers:
        if np.iscomplexobj(arrays[k]):
            directions[k] = directions[k] + 1j * rng.standard_normal(arrays[k].shape)

    def at(step):
        moved = [a + step * directions[k] if k in directions else a for k, a in enumerate(arrays)]
        return float(program.function(library, *moved))

    assert value == pytest.approx(at(0.0), rel=1e-12)
    along = gradient @ np.concatenate([part for k in numbers for part in parts_of(directions[k])])
    slopes = {step: (at(step) - at(-step)) / (2 * step) for step in STEPS}
    # relative to the gradient, which may be across the direction; rounding is amplified
    bounds = {s: 1e-4 * np.linalg.norm(gradient) + 1e-14 * abs(value) / s for s in STEPS}
    assert any(abs(along - slopes[step]) < bounds[step] for step in STEPS), (along, slopes)
