"""Functions of generated code, for tests of passes, and what is known of their names."""

import ast
import textwrap
import types

from tapegrad.transform.generated import Facts, Generated, parsed_function
from tapegrad.transform.ir import Role, Value
from tapegrad.transform.optimize.function import Function
from tapegrad.transform.optimize.module import Module
from tapegrad.transform.optimize.passes import run_pass


def facts_of(kinds, extents=None):
    """Return what is known of a function, in which ``x_bar`` is the cotangent of x."""
    values = {f"{name}_bar": Value(Role.COTANGENT, name) for name in kinds}
    return Facts(kinds, values, extents)


def function_of(text, facts=None, others=()):
    """Return the function of a text, beside other functions of its module, for passes."""
    made_from = types.SimpleNamespace(targetoptions={})
    texts = [text, *others]
    functions = [
        Generated(parsed_function(textwrap.dedent(t)), made_from, facts or Facts({})) for t in texts
    ]
    return Function(functions[0], Module(functions, lambda name: None, lambda stem: stem))


def after_pass(pass_, text, facts=None, others=()):
    """Return the text of a function after a pass, and whether the pass says that it changed."""
    function = function_of(text, facts, others)
    changed = run_pass(pass_, function)
    return ast.unparse(ast.fix_missing_locations(function.tree)), changed


def with_body(signature, lines):
    """Return the text of a function with a signature and lines."""
    return f"def {signature}:\n{textwrap.indent(textwrap.dedent(lines), '    ')}"
