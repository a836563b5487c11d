"""Changes of generated code, as defects of the generator would make them."""

import ast
import contextlib


@contextlib.contextmanager
def lines_changed_in(builder, change):
    """Change the lines of the statements that are added inside.

    Parameters
    ----------
    builder
        The `tapegrad.transform.builder.Builder`.
    change
        Function of a list of lines that returns others.
    """
    start = len(builder.body)
    yield
    added = builder.body[start:]
    lines = [line for statement in added for line in ast.unparse(statement).splitlines()]
    builder.body[start:] = ast.parse("\n".join(change(lines))).body
