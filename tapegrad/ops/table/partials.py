"""Splitting a function that returns several partial derivatives.

Each partial becomes a separate function that reads and computes only what it needs, so that nothing
is saved or computed for an argument without gradient.
"""

from __future__ import annotations

import ast
import inspect
import linecache
import textwrap
from types import FunctionType

from tapegrad.ops.table.op import Rule


def taken_apart(rule: Rule) -> list[Rule]:
    """Return one function per item of the tuple that a rule returns.

    Parameters
    ----------
    rule
        A function that consists of assignments followed by a return of a tuple.

    Raises
    ------
    TypeError
        If it has another form.
    """
    tree = ast.parse(textwrap.dedent(_source(rule))).body[0]
    assert isinstance(tree, ast.FunctionDef)
    *steps, last = tree.body
    if not (isinstance(last, ast.Return) and isinstance(last.value, ast.Tuple)) or not all(
        isinstance(step, ast.Assign) for step in steps
    ):
        code = rule.__code__
        raise TypeError(
            f"{code.co_filename}, line {code.co_firstlineno}: partials are assignments, and a "
            "return of a tuple with one for each argument"
        )
    return [
        _function(rule, tree, steps, item, number) for number, item in enumerate(last.value.elts)
    ]


def _source(rule: Rule) -> str:
    """Return the source of a function that ends with what it returns.

    `inspect.getsource` looks for the end token by token, which takes ten times as long.
    """
    code = rule.__code__
    last = max(end for _, end, _, _ in code.co_positions() if end is not None)
    lines = linecache.getlines(code.co_filename, rule.__globals__)
    return "".join(lines[code.co_firstlineno - 1 : last])


def _function(
    rule: Rule, tree: ast.FunctionDef, steps: list[ast.stmt], item: ast.expr, number: int
) -> Rule:
    """Return the function of one item."""
    needed, body = _names(item), [ast.unparse(ast.Return(item))]
    for step in reversed(steps):
        if needed & _names(step, ast.Store):
            needed |= _names(step)
            body.append(ast.unparse(step))
    arguments = [a.arg for a in tree.args.args if a.arg in needed]
    text = f"def {tree.name}({', '.join(arguments)}):\n"
    text += "".join(f"    {line}\n" for line in reversed(body))
    code = rule.__code__
    filename = f"<partial {number} of line {code.co_firstlineno} of {code.co_filename}>"
    linecache.cache[filename] = (len(text), None, text.splitlines(True), filename)
    module = compile(text, filename, "exec")
    (made,) = [found for found in module.co_consts if inspect.iscode(found)]
    return FunctionType(made, rule.__globals__, tree.name)


def _names(node: ast.AST, context: type[ast.expr_context] = ast.Load) -> set[str]:
    """Return the names that a node reads or assigns."""
    return {
        part.id
        for part in ast.walk(node)
        if isinstance(part, ast.Name) and isinstance(part.ctx, context)
    }
