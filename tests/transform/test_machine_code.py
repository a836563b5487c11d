"""Functions of the package that compiled code calls."""

import numba
import numpy as np

from tapegrad.transform.cache.machine_code import MachineCode, jit, passive, uncached


def double(x):
    return 2.0 * x


def test_they_have_no_wrapper_for_calls_from_python():
    made = uncached(double)
    made.compile((numba.float64,))
    (compiled,) = made.overloads.values()
    names = [function.name for function in compiled.library._final_module.functions]
    assert compiled.fndesc.llvm_cpython_wrapper_name not in names
    assert compiled.fndesc.llvm_cfunc_wrapper_name not in names


def test_python_can_call_them_nevertheless():
    for make in (jit, passive, uncached):
        made = make(double)
        assert made(3.0) == 6.0
        np.testing.assert_array_equal(made(np.ones(2)), [2.0, 2.0])
        assert made(x=1.5) == 3.0


def test_compiled_code_calls_them():
    made = uncached(double)

    @numba.njit
    def quadruple(x):
        return made(made(x))

    assert quadruple(1.5) == 6.0
    assert made(1.0) == 2.0


def test_code_that_numba_was_not_shown_is_kept(tmp_path):
    """As where LLVM finds the names of a function in the process, and makes no code for it."""
    made = numba.njit(double)
    made.compile((numba.float64,))
    (compiled,) = made.overloads.values()
    compiled.library.enable_object_caching()  # there is no code now
    cache = MachineCode(tmp_path / "double", "a key")
    cache.save_overload((numba.float64,), compiled)
    found = cache.load_overload((numba.float64,), compiled.target_context)
    assert found is not None
    assert found.entry_point(1.5) == 3.0
