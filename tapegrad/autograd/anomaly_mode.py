"""Tracing an error or nan of the backward pass to the forward call that caused it."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np

from tapegrad.eager.batched import held
from tapegrad.eager.frames import node_name
from tapegrad.eager.modes import MODE, ModeContext
from tapegrad.eager.tensor import Tensor
from tapegrad.tape.owner import Owner, notes_of


class set_detect_anomaly:
    """Switch anomaly detection on or off; as a context manager, until the context ends.

    While it is on, every op notes its call stack. If the backward pass fails, a warning shows where
    the op whose gradient failed was called. It slows programs down, so use it only for debugging.

    Parameters
    ----------
    mode
        Whether to detect anomalies.
    check_nan
        Raise if a backward returns nan.
    """

    def __init__(self, mode: bool, check_nan: bool = True) -> None:
        self._before = MODE.set_anomaly(bool(mode), bool(check_nan))

    def __enter__(self) -> None:
        pass

    def __exit__(self, *exc: object) -> None:
        MODE.set_anomaly(*self._before)


class detect_anomaly(ModeContext):
    """Detect anomalies within a context; see `set_detect_anomaly`.

    Parameters
    ----------
    check_nan
        Raise if a backward returns nan.

    Examples
    --------
    >>> import warnings
    >>> import numpy as np
    >>> import tapegrad as tg
    >>> with warnings.catch_warnings(), np.errstate(all="ignore"):
    ...     warnings.simplefilter("ignore")
    ...     with tg.autograd.detect_anomaly():
    ...         x = tg.tensor([0.0], requires_grad=True)
    ...         (tg.sqrt(x) * 0.0).sum().backward()
    Traceback (most recent call last):
        ...
    RuntimeError: Function 'SqrtBackward' returned nan values in its 0th output.
    """

    def __init__(self, check_nan: bool = True) -> None:
        self.check_nan = check_nan
        warnings.warn(
            "Anomaly Detection has been enabled. This mode will increase the runtime and should "
            "only be enabled for debugging.",
            UserWarning,
            stacklevel=2,
        )

    def now(self) -> Any:
        return MODE.anomaly, MODE.check_nan

    def enter(self) -> None:
        MODE.set_anomaly(True, self.check_nan)

    def leave(self, before: Any) -> None:
        MODE.set_anomaly(*before)


def is_anomaly_enabled() -> bool:
    """Return whether anomalies are detected."""
    return MODE.anomaly


def is_anomaly_check_nan_enabled() -> bool:
    """Return whether nan in a backward pass raises while anomalies are detected."""
    return MODE.check_nan


def warn_of_origin(own: Owner) -> None:
    """Warn of an error at a record, with the calls that recorded it and induced that record."""
    warnings.warn(
        f"Error detected in {node_name(own)}Backward. "
        + _origin(own, "Traceback of forward call that caused the error:"),
        UserWarning,
        stacklevel=2,
    )
    parent = _metadata(own).get("parent_")
    while parent is not None:
        warnings.warn(
            f"\n\nPrevious calculation was induced by {parent.name()}. "
            + _origin(
                parent._own, "Traceback of forward call that induced the previous calculation:"
            ),
            UserWarning,
            stacklevel=2,
        )
        parent = parent.metadata.get("parent_")


def _metadata(own: Owner) -> dict[Any, Any]:
    notes = notes_of(own)
    return {} if notes is None else notes.metadata


def _origin(own: Owner, title: str) -> str:
    trace = _metadata(own).get("traceback_")
    if trace is None:
        return (
            "No forward pass information available. Enable detect anomaly during forward pass for "
            "more information."
        )
    return f"{title}\n{''.join(trace)}"


def check_nan(own: Owner, cotangents: list[Any]) -> None:
    """Raise if a record's vjp returned nan."""
    for k, g in enumerate(cotangents):
        if isinstance(g, Tensor) and np.isnan(held(g)._a).any():
            raise RuntimeError(
                f"Function '{node_name(own)}Backward' returned nan values in its {k}th output."
            )
