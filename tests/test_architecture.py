"""The layers of the package: imports point one way, and files stay small enough to read."""

import ast
import functools
from pathlib import Path

import pytest

import tapegrad

PACKAGE = Path(tapegrad.__file__).parent
FILES = sorted(PACKAGE.rglob("*.py"))

# The layers, from the bottom up: what stands in one imports nothing from those after it. A module
# belongs to the longest name that it begins with.
LAYERS = [
    ["forks", "garbage", "imports", "probes"],
    ["kernels"],
    ["cuda"],
    ["tape"],
    ["ops"],
    ["cuda.numeric"],
    ["eager"],
    ["autograd.anomaly_mode", "autograd.grad_mode"],
    ["autograd.engine"],
    ["autograd"],
    ["array_api", "calls", "methods", "pickling", "pytrees", "random", "stats"],
    ["utils"],
    ["control_flow"],
    ["func", "testing"],
    ["fft", "linalg", "special"],
    [
        f"transform.{name}"
        for name in (
            "argument_copies",
            "errors",
            "generated",
            "facts",
            "kept",
            "kinds",
            "ir",
            "syntax",
            "builder",
            "declared",
            "nodes",
            "printer",
            "protocols",
            "trees",
            "stubs",
        )
    ],
    ["transform.cache"],
    ["transform.deferred", "transform.eager_calls"],
    ["transform.extremes", "transform.tape_memory"],
    ["transform.requests"],
    [
        *("transform.blas", "transform.checkpointing", "transform.fourier", "transform.functions"),
        *("transform.lapack", "transform.names", "transform.vector_math"),
    ],
    ["transform.spectra"],
    ["transform.request_code"],
    ["transform.lapack_calls"],
    [f"transform.{name}_code" for name in ("blas", "fourier", "lapack", "spectra")],
    ["transform.powers"],
    ["transform.runtime"],
    ["transform.frontend"],
    ["transform.rules"],
    ["transform.sharing"],
    ["transform.lowering"],
    ["transform.verifier"],
    ["transform.independence"],
    ["transform.optimize", "transform.parallel"],
    ["transform.codegen"],
    ["transform.equivalence"],
    ["transform.generation"],
    [
        f"transform.{name}"
        for name in ("base", "composed", "derivatives", "frozen", "recording", "vjps")
    ],
    ["transform.checks", "transform.device"],
    ["transform"],
    ["replay"],
    ["stubs"],
    [""],
]
# imports inside of functions, and why they stand there
INNER = {
    ("eager.devices", "cuda.numeric.functions"): "only for those who have a device",
    ("func.common", "transform.function"): "numba's front end takes half a second",
    ("func.vmap", "replay.function"): "for the same reason",
    ("kernels.native", "kernels.llvm.pipeline"): "what is on disk needs no numba",
    ("transform.base", "transform.generation"): "what is on disk needs none of it",
    ("transform.ensembles.calls", "transform.ensembles.targets"): "only for batches",
}
# imports that type checkers alone see, of what stands above or imports the module
FOR_CHECKERS = {
    ("", "stubs"),
    ("eager.tensor", "stubs"),
    ("fft", "stubs"),
    ("linalg", "stubs"),
    ("special", "stubs"),
}


def module_name(file):
    """Dotted name of a file of the package."""
    parts = file.relative_to(PACKAGE.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


@functools.cache
def imports(file):
    """Every module that a file imports, inside functions as well, with the line."""
    return list(found_imports(file))


def found_imports(file):
    tree = ast.parse(file.read_text())
    package = module_name(file).split(".")
    if file.name != "__init__.py":
        package = package[:-1]
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((alias.name, node.lineno) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                base = ".".join([*package[: len(package) - node.level + 1], *filter(None, [base])])
            for alias in node.names:
                yield f"{base}.{alias.name}", node.lineno
        elif isinstance(node, ast.Call) and node.args:
            called = getattr(node.func, "attr", getattr(node.func, "id", None))
            if called in ("import_module", "__import__"):
                argument = node.args[0]
                if isinstance(argument, ast.Constant):
                    yield str(argument.value), node.lineno
                elif isinstance(argument, ast.JoinedStr):
                    text = "".join(str(getattr(part, "value", "")) for part in argument.values[:1])
                    yield text, node.lineno


MODULES = {module_name(file): file for file in FILES}


def module_of(name):
    """The module of the package that an imported name is, or stands in; None outside of it."""
    while name and name not in MODULES:
        name = name.rpartition(".")[0]
    return name.removeprefix("tapegrad").removeprefix(".") if name else None


def layer_of(module):
    """The number of the layer that a module belongs to."""
    matches = {
        len(name): number
        for number, names in enumerate(LAYERS)
        for name in names
        if not name or f"{module}.".startswith(f"{name}.")
    }
    return matches[max(matches)]


def is_for_checkers(node):
    return isinstance(node, ast.If) and ast.unparse(node.test).endswith("TYPE_CHECKING")


def found_inside(kind):
    """The imports inside of nodes of a kind, as pairs of modules of the package."""
    found = set()
    for file in FILES:
        importer = module_of(module_name(file))
        for outer in filter(kind, ast.walk(ast.parse(file.read_text()))):
            for node in ast.walk(outer):
                if isinstance(node, ast.ImportFrom | ast.Import):
                    base = f"{node.module}." if isinstance(node, ast.ImportFrom) else ""
                    targets = {module_of(f"{base}{alias.name}") for alias in node.names}
                    found |= {(importer, target) for target in targets - {None}}
    return found


def test_there_is_something_to_check():
    assert {module_name(file) for file in FILES} >= {"tapegrad.ops.table.op", "tapegrad.tape.tape"}
    assert layer_of("ops.table.op") > layer_of("tape.tape") > layer_of("kernels.native")
    assert layer_of("autograd.engine.node") < layer_of("autograd.api") < layer_of("func")
    for name in (n for names in LAYERS for n in names if n):
        path = PACKAGE / name.replace(".", "/")
        assert path.is_dir() or path.with_suffix(".py").is_file(), name
    found = {module_of(name) for name, _ in imports(PACKAGE / "eager/dispatch.py")}
    assert {"ops.table.op", "tape.tape", "eager.tensor"} <= found


@pytest.mark.parametrize("file", FILES, ids=module_name)
def test_imports_point_down(file):
    """Also inside of functions, but for those listed."""
    importer = module_of(module_name(file))
    wrong = [
        f"{file.relative_to(PACKAGE)}:{line} imports {name}"
        for name, line in imports(file)
        if (module := module_of(name)) is not None
        and layer_of(module) > layer_of(importer)
        and (importer, module) not in INNER.keys() | FOR_CHECKERS
    ]
    assert wrong == []


def test_the_verifier_shares_nothing_with_passes():
    """So that what passes over generated code get wrong, it does not get wrong in the same way."""
    parts = ("independence", "optimize", "parallel")
    names = [name for name in MODULES if name.split(".")[2:3] in [[part] for part in parts]]
    assert len(names) > 30
    used = {(name, module_of(target)) for name in names for target, _ in imports(MODULES[name])}
    assert [pair for pair in used if (pair[1] or "").startswith("transform.verifier")] == []


def test_imports_inside_of_functions():
    """Each has a reason: an import that is needed later only, or hides a cycle, wants a look."""
    functions = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)
    assert found_inside(lambda node: isinstance(node, functions)) == INNER.keys()


def test_imports_for_checkers_of_types():
    assert found_inside(is_for_checkers) == FOR_CHECKERS


def test_no_cycle():
    """Imports have no cycle, those inside of functions included but for the ones listed."""
    graph = {}
    for file in FILES:
        importer = module_of(module_name(file))
        found = {module_of(name) for name, _ in imports(file)} - {None, importer}
        graph[importer] = {m for m in found if (importer, m) not in INNER.keys() | FOR_CHECKERS}
    # a package needs nothing of itself to be imported that its modules do not need
    for package in [m for m in graph if (PACKAGE / m.replace(".", "/")).is_dir()]:
        for module in graph:
            if module.startswith(f"{package}.") or not package:
                graph[module].discard(package)
    while graph:
        free = [name for name, needs in graph.items() if not needs & graph.keys()]
        assert free, f"modules that import each other: {sorted(graph)}"
        for name in free:
            del graph[name]


@pytest.mark.parametrize("file", FILES, ids=module_name)
def test_file_length(file):
    """No file over 600 lines."""
    count = len(file.read_text().splitlines())
    assert count <= 600, f"{file.relative_to(PACKAGE)} has {count} lines"


def test_names_of_test_files_differ():
    """pytest takes two files of one name, in different folders, for the same."""
    files = sorted(Path(__file__).parent.rglob("test_*.py"))
    names = [file.name for file in files]
    assert len(files) > 50
    assert [file for file in files if names.count(file.name) > 1] == []
