"""Generated code is well-formed after every pass, and passes say whether they changed it."""

import ast
import copy

import numba
import pytest
from optimized import with_body
from pass_spec import Spec

from tapegrad.transform import generation
from tapegrad.transform.errors import InternalError
from tapegrad.transform.generated import parsed_functions
from tapegrad.transform.optimize import passes
from tapegrad.transform.syntax import subtree
from tapegrad.transform.verifier.verify import verify_names
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


@pytest.mark.parametrize("seed", range(4))
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


# -- what runs is checked once more ----------------------------------------------------------------


def test_names_of_what_runs_are_defined(monkeypatch, tmp_path):
    """Without any one of its assignments, or with another name, it is refused."""
    monkeypatch.setenv("TAPEGRAD_CACHE_DIR", str(tmp_path))
    seen = []
    monkeypatch.setattr(generation, "verify_names", lambda *args: seen.append(copy.deepcopy(args)))
    (modules,) = [modules for found, modules in of_benchmarks() if found == "wave"]
    with types_only(small_blocks=False):
        next(iter(modules()))[1]()
    ((trees, lines, names),) = seen
    verify_names(trees, lines, names)
    text = ast.unparse(ast.Module(trees, []))
    count = 0
    for place in range(len(assignments(ast.parse(text)))):
        tree = ast.parse(text)
        node = assignments(tree)[place]
        name = node.targets[0].id
        node.targets[0].id = "another"
        is_read, is_assigned = uses(tree, name)
        if is_read and not is_assigned:
            count += 1
            with pytest.raises(InternalError, match=f"{name} is defined nowhere"):
                check_names(ast.unparse(tree), names)
    assert count > 20
    with pytest.raises(InternalError, match="runtime_ is defined nowhere"):
        check_names(text.replace("runtime.", "runtime_."), names)


def check_names(text, names):
    verify_names(parsed_functions(text), text.splitlines(), names)


def assignments(tree):
    return [
        node
        for node in subtree(tree)
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name)
    ]


def uses(tree, name):
    """How often a name is read, and how often it is assigned."""
    found = [type(n.ctx) for n in subtree(tree) if isinstance(n, ast.Name) and n.id == name]
    return found.count(ast.Load), found.count(ast.Store)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("if x:\n    y = x\nreturn y", "y is read where it may not be defined"),
        ("for k in range(x):\n    y = k\nreturn y", "y is read where it may not be defined"),
        ("try:\n    y = x\nexcept Exception:\n    pass\nreturn y", "y is read where it may"),
        ("try:\n    y = x\nexcept Exception:\n    y = 0\nreturn z", "z is defined nowhere"),
        ("y = x", "the function ends without a return"),
        ("return x\ny = x", "a statement that is never reached"),
    ],
)
def test_functions_that_are_refused(text, message):
    with pytest.raises(InternalError, match=message):
        check_names(with_body("f(x)", text), ())


def test_functions_that_are_not():
    check_names(with_body("f(x)", "try:\n    y = x\nexcept Exception:\n    y = 0\nreturn y"), ())
    check_names(with_body("f(x)", "try:\n    y = x\nexcept Exception:\n    raise\nreturn y"), ())
    check_names(with_body("f(x)", "if x:\n    y = x\nif x:\n    return y\nreturn g(x)"), ["g"])
