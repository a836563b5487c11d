"""Which functions are declared where."""

from tapegrad.ops.table.composite import COMPOSITES
from tapegrad.ops.table.op import TABLE, Op


def declared_in(*modules):
    """The names of the functions that some modules declare."""
    names = {module.__name__ for module in modules}
    return {
        name
        for name, value in {**TABLE, **COMPOSITES}.items()
        if (value.declaration if isinstance(value, Op) else value.function).__module__ in names
    }
