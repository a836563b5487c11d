"""Generated code is well-formed after every pass, and passes say whether they changed it."""

import itertools

import numba
import pytest
from pass_spec import Spec

from tapegrad.transform.optimize import passes
from tests.generated import modules_of, of_benchmarks, of_recordings
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


# which together need every pass
PROGRAMS = [
    "clusters", "clusters_arrays", "clusters_min", "gmm_loops", "lennard_jones", "logistic",
    "lorenz", "jit of mlp",
]  # fmt: skip


def test_every_pass_finds_something(monkeypatch, tmp_path):
    every = itertools.chain(of_benchmarks(), of_recordings())
    found = [module for name, modules in every if name in PROGRAMS for module in modules()]
    ran = checked(found, monkeypatch, tmp_path)
    names = {p.__name__ for p in (*passes.PASSES, *passes.FINISHING)}
    assert {name for name in names if not ran.get(name)} == set()
