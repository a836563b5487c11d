"""Generated code is well-formed after every pass, and passes say whether they changed it."""

import numba
import pytest
from pass_spec import Spec

from tapegrad.transform.optimize import passes
from tests.generated import modules_of, of_benchmarks
from tests.transform.random_programs.comparison import load
from tests.transform.random_programs.interpret import types_only
from tests.transform.random_programs.writer import program_of

pytestmark = pytest.mark.texts


def checked(modules, monkeypatch, tmp_path):
    """How often each pass changed something when modules were made."""
    monkeypatch.setenv("TAPEGRAD_CACHE_DIR", str(tmp_path))
    spec = Spec(monkeypatch)
    with types_only(small_blocks=False):
        for _, make in modules:
            make()
    return spec.ran


@pytest.mark.parametrize("seed", range(8))
def test_random_programs(seed, monkeypatch, tmp_path):
    program = program_of(seed)
    kinds = tuple(map(numba.typeof, program.arguments(0)))
    function = load(program.source).f
    modules = modules_of(function, tuple(program.argnums), kinds)
    assert checked(modules, monkeypatch, tmp_path).keys() >= {p.__name__ for p in passes.PASSES}


# the passes that change programs of the benchmark; others have tests of their own
CHANGING = {
    "clusters": {"put_in_blocks", "skip_unread", "visit_single_elements", "write_blocks"},
    "clusters_min": {"select_cotangents", "end_early", "begin_at_last_changes"},
    "erf_sum": {"remove_unread_zeros", "leave_out_zeros", "call_runtime", "drop_copies"},
    "lennard_jones": {"unroll", "put_in_blocks", "split_names"},
    "wave": {"move_out_invariants", "remove_unread_zeros", "put_in_blocks"},
}


@pytest.mark.parametrize("name", CHANGING)
def test_programs_of_the_benchmark(name, monkeypatch, tmp_path):
    (modules,) = [modules for found, modules in of_benchmarks() if found == name]
    ran = checked(modules(), monkeypatch, tmp_path)
    assert {pass_ for pass_, count in ran.items() if count} >= CHANGING[name]
