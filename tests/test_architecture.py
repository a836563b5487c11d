"""The layers of the package: imports point one way, and files stay small enough to read."""

import ast
from pathlib import Path

import pytest

import tapegrad

PACKAGE = Path(tapegrad.__file__).parent
FILES = sorted(PACKAGE.rglob("*.py"))

# what a part of the package must not import, anywhere in its files
UPPER = {"tensor", "dispatch", "eager", "autograd"}
FORBIDDEN = {
    "kernels": UPPER | {"ops"},
    "tape": UPPER | {"ops"},
    "ops": UPPER,
}
# whatever stands above the tensor is above these parts as well
ABOVE = {"creation", "frames", "func", "inplace", "linalg", "methods", "numeric", "protocols"}
ABOVE |= {"saved", "testing", "transform"}


def module_name(file):
    """Dotted name of a file of the package."""
    parts = file.relative_to(PACKAGE.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def imports(file):
    """Every module that a file imports, inside functions as well, with the line."""
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
            called = ast.unparse(node.func)
            if called in ("import_module", "importlib.import_module", "__import__"):
                argument = node.args[0]
                if isinstance(argument, ast.Constant):
                    yield str(argument.value), node.lineno
                elif isinstance(argument, ast.JoinedStr):
                    text = "".join(str(getattr(part, "value", "")) for part in argument.values[:1])
                    yield text, node.lineno


def part_of(module):
    """The part of the package that a module belongs to, None outside of it."""
    names = module.split(".")
    return names[1] if names[0] == "tapegrad" and len(names) > 1 else None


def test_there_is_something_to_check():
    assert {module_name(file) for file in FILES} >= {"tapegrad.ops.op", "tapegrad.tape.tape"}
    assert all((PACKAGE / part).is_dir() for part in FORBIDDEN)
    found = {part_of(name) for name, _ in imports(PACKAGE / "dispatch.py")}
    assert {"ops", "tape", "tensor"} <= found


@pytest.mark.parametrize("part", FORBIDDEN)
def test_imports_point_down(part):
    wrong = [
        f"{file.relative_to(PACKAGE)}:{line} imports {name}"
        for file in (PACKAGE / part).rglob("*.py")
        for name, line in imports(file)
        if part_of(name) in FORBIDDEN[part] | ABOVE or name == "tapegrad"
    ]
    assert wrong == []


def test_no_cycle_at_import_time():
    """Imports at the top of modules alone have no cycle."""
    graph = {}
    names = {module_name(file) for file in FILES}
    for file in FILES:
        tree = ast.parse(file.read_text())
        top = set()
        for node in tree.body:
            if isinstance(node, ast.ImportFrom) and node.module:
                for alias in node.names:
                    full = f"{node.module}.{alias.name}"
                    top.add(full if full in names else node.module)
            elif isinstance(node, ast.Import):
                top |= {alias.name for alias in node.names}
        graph[module_name(file)] = top & names - {module_name(file)}
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
