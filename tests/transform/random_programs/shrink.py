"""Smaller programs that fail in the same way."""

import ast
import copy
import dataclasses
import time


def shrunk(program, fails, seconds=60.0):
    """A program as small as one gets by leaving out parts, in so many seconds.

    Parameters
    ----------
    program : Program
    fails : callable
        Takes a program; whether it still fails.
    seconds : float
    """
    end = time.monotonic() + seconds
    program = dataclasses.replace(program, source=ast.unparse(ast.parse(program.source)) + "\n")
    changed = True
    while changed and time.monotonic() < end:
        changed = False
        position = 0
        while time.monotonic() < end:
            candidate = variant(program, position)
            if candidate is None:
                break
            if candidate.source != program.source and valid(candidate) and fails(candidate):
                program, changed = candidate, True
            else:
                position += 1
    return program


def valid(program):
    try:
        compile(program.source, "<variant>", "exec")
    except SyntaxError:
        return False
    return True


def variant(program, position):
    """The program without its part of a number; None if it has fewer parts."""
    tree = ast.parse(program.source)
    cuts = [*function_cuts(tree), *statement_cuts(tree), *argument_cuts(tree, program)]
    cuts += expression_cuts(tree)
    if position >= len(cuts):
        return None
    changes = cuts[position]() or {}
    text = ast.unparse(ast.fix_missing_locations(tree)) + "\n"
    return dataclasses.replace(program, source=text, **changes)


def function_cuts(tree):
    """Whole helpers, and the constants that no one uses."""

    def cut(node):
        return lambda: tree.body.remove(node)

    return [
        cut(node)
        for node in tree.body
        if isinstance(node, ast.FunctionDef | ast.Assign) and getattr(node, "name", "") != "f"
    ]


def blocks(tree):
    """All lists of statements inside of functions."""
    for node in ast.walk(tree):
        for field in ("body", "orelse"):
            block = getattr(node, field, None)
            if isinstance(block, list) and block and not isinstance(node, ast.Module):
                yield field, block


def statement_cuts(tree):
    cuts = []
    for field, block in blocks(tree):
        for k, statement in enumerate(block):

            def leave_out(block=block, k=k, field=field):
                del block[k]
                if not block and field == "body":
                    block.append(ast.Pass())

            def open_up(block=block, k=k, statement=statement):
                block[k : k + 1] = [*statement.body, *statement.orelse]

            if not isinstance(statement, ast.Pass):
                cuts.append(leave_out)
            if isinstance(statement, ast.If | ast.For | ast.While):
                cuts.append(open_up)
    return cuts


def expression_cuts(tree):
    """Operands instead of operations, constants instead of operands."""
    cuts = []
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef):
            continue
        for field, value in ast.iter_fields(node):
            values = value if isinstance(value, list) else [value]
            for k, expression in enumerate(values):
                for smaller in simpler(expression):

                    def put(node=node, field=field, k=k, smaller=smaller):
                        smaller = copy.deepcopy(smaller)
                        if isinstance(getattr(node, field), list):
                            getattr(node, field)[k] = smaller
                        else:
                            setattr(node, field, smaller)

                    cuts.append(put)
    return cuts


def simpler(node):
    """Expressions that may stand for one."""
    if isinstance(node, ast.BinOp):
        return [node.left, node.right]
    if isinstance(node, ast.UnaryOp) and not isinstance(node.operand, ast.Constant):
        return [node.operand]
    if isinstance(node, ast.IfExp):
        return [node.body, node.orelse]
    if isinstance(node, ast.BoolOp):
        return node.values
    if isinstance(node, ast.Call):
        return [a for a in node.args if not isinstance(a, ast.Constant)][:2]
    if isinstance(node, ast.Subscript) and isinstance(node.ctx, ast.Load):
        index = node.slice
        if not isinstance(index, ast.Constant | ast.Slice | ast.Tuple | ast.UnaryOp):
            plain = ast.Subscript(node.value, ast.Constant(0), ast.Load())
            return [plain]
    return []


def argument_cuts(tree, program):
    """Arguments of the function that it does not use, and of the differentiation."""
    function = next(n for n in tree.body if isinstance(n, ast.FunctionDef) and n.name == "f")
    used = {node.id for node in ast.walk(function) if isinstance(node, ast.Name)}
    cuts = []
    for k, argument in enumerate(function.args.args):
        others = tuple(n for n in program.argnums if n != k)
        if argument.arg not in used and len(program.kinds) > 1 and others:

            def leave_out(k=k, others=others):
                del function.args.args[k]
                return {
                    "kinds": program.kinds[:k] + program.kinds[k + 1 :],
                    "argnums": tuple(n - (n > k) for n in others),
                }

            cuts.append(leave_out)
    return cuts
