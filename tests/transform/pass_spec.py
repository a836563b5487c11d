"""What is true of generated code after every pass (`tapegrad.transform.optimize.passes`)."""

import ast
import builtins

from tapegrad.transform.frontend.liveness import assigned, live
from tapegrad.transform.names import namespace
from tapegrad.transform.optimize import passes
from tapegrad.transform.syntax import subtree
from tapegrad.transform.trees import complete


class Spec:
    """Runs passes, and compares functions before and after each of them.

    Parameters
    ----------
    monkeypatch
        The fixture: passes are checked as long as it lasts.
    """

    def __init__(self, monkeypatch):
        self.ran = {}  # how often each pass changed a function
        self.run_pass = passes.run_pass
        monkeypatch.setattr(passes, "run_pass", self.run)

    def run(self, pass_, function):
        """Run a pass on a function, and check what it leaves."""
        undefined = read_first(function.tree)
        before = ast.unparse(ast.fix_missing_locations(function.tree))
        changed = self.run_pass(pass_, function)
        try:
            if changed:
                check(function, undefined)
            else:
                after = ast.unparse(ast.fix_missing_locations(function.tree))
                assert after == before, "it says that it changed nothing"
        except AssertionError as error:
            raise AssertionError(f"{pass_.__name__} of {function.name}: {error}") from error
        self.ran[pass_.__name__] = self.ran.get(pass_.__name__, 0) + changed
        return changed


def read_first(tree):
    """The names that a function may read before it assigns them."""
    return live(tree.body, set())


def check(function, undefined):
    """Check a function that may read some names before they are assigned."""
    tree = function.tree
    own = set(assigned([tree]))
    assert ast.dump(complete(tree)) == ast.dump(tree), "it is not what its text is parsed to"
    for node in subtree(tree):
        if isinstance(node, (ast.For, ast.While, ast.If, ast.FunctionDef)):
            assert node.body, "a block is empty"
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            check_attribute(node, own)
    new = read_first(tree) - undefined - KNOWN.keys() - {p.arg for p in tree.args.args}
    new -= {n for n in new if hasattr(builtins, n) or n in function.module.functions}
    new -= {f.name for f in function.module.vectorized.functions}
    assert not new, f"{sorted(new)} may be read before they are assigned"


KNOWN = namespace({})


def check_attribute(node, own):
    """Check that what is called of a module exists, unless the module's name is one of its own."""
    module = KNOWN.get(node.value.id)
    if module is not None and node.value.id not in own:
        assert hasattr(module, node.attr), f"{node.value.id} has no {node.attr}"
