"""The option ``--part K/N`` of commands that take long."""

import argparse
from collections.abc import Callable
from typing import Any


def add_part(parser: argparse.ArgumentParser) -> None:
    """Let a command do a part of its work; the option is a function that takes it of a list."""
    parser.add_argument(
        "--part",
        metavar="K/N",
        type=_part_of,
        default="0/1",
        help="only part K of N (default: all)",
    )


def _part_of(text: str) -> Callable[[list[Any]], list[Any]]:
    """Return what takes every N-th item of a list, from text like K/N."""
    part, parts = map(int, text.split("/"))
    return lambda items: items[part % parts :: parts]
