"""SciPy's functions, imported on first call, since SciPy is an optional dependency."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any


def scipy_function(module: str, name: str) -> Callable[..., Any]:
    """Return a function of SciPy.

    Parameters
    ----------
    module
        Its submodule of scipy.
    name
        Its name there.

    Raises
    ------
    ImportError
        If SciPy is not installed; the message tells what to install.
    """
    try:
        functions = importlib.import_module(f"scipy.{module}")
    except ImportError:
        raise ImportError(
            f"{name} is computed by SciPy, which is not installed: pip install 'tapegrad[special]'"
        ) from None
    return getattr(functions, name)
