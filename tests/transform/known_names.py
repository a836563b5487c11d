"""What is known of the names in the texts of tests."""

from tapegrad.transform.generated import Facts
from tapegrad.transform.ir import Role, Value


def facts_of(kinds, extents=None):
    """Return what is known of a function, in which ``x_bar`` is the cotangent of x."""
    values = {f"{name}_bar": Value(Role.COTANGENT, name) for name in kinds}
    return Facts(kinds, values, extents)
