"""Tables, drawn by rich if it is installed or in Markdown, and the times and sizes in them."""

from collections.abc import Iterable, Sequence


def show_heading(text: str) -> None:
    """Print what the tables that follow are about."""
    print(f"\n{text}\n{'=' * len(text)}\n", flush=True)


def show_table(title: str, columns: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Print a table: the first column to the left, the others to the right."""
    try:  # it is optional
        from rich.console import Console
        from rich.table import Table
    except ImportError:
        show_plain_table(title, columns, rows)
        return
    table = Table(title=title, title_justify="left", title_style="bold")
    for i, column in enumerate(columns):
        table.add_column(column, justify="right" if i else "left", no_wrap=i == 0)
    for row in rows:
        table.add_row(*row)
    console = Console()
    if not console.is_terminal:
        console.width = 120
    console.print(table)


def show_plain_table(title: str, columns: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """The same without any library."""
    widths = [max(map(len, cells)) for cells in zip(columns, *rows, strict=True)]

    def line(cells: Sequence[str]) -> str:
        first, *others = (
            cell.rjust(width) if i else cell.ljust(width)
            for i, (cell, width) in enumerate(zip(cells, widths, strict=True))
        )
        return "  ".join([first, *others]).rstrip()

    print(f"\n{title}", line(columns), "  ".join("-" * width for width in widths), sep="\n")
    print(*map(line, rows), sep="\n")


def duration(seconds: float | None) -> str:
    """Seconds to three digits in the unit that suits them."""
    if seconds is None:
        return ""
    for unit, scale in (("s", 1.0), ("ms", 1e3)):
        if seconds * scale >= 1:
            return f"{seconds * scale:.3g} {unit}"
    return f"{seconds * 1e6:.3g} us"


def size_in_bytes(count: float) -> str:
    """Bytes in the unit that suits them."""
    for unit, scale in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if abs(count) >= scale:
            return f"{count / scale:.3g} {unit}"
    return f"{count:.0f} B"


def ratio(value: float | None, reference: float | None) -> str:
    """One time as a multiple of another."""
    return "" if value is None or not reference else f"{value / reference:.3g}x"


def markdown(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a table in Markdown: the first column to the left, the others to the right."""
    escaped = ([cell.replace("|", "\\|") for cell in row] for row in rows)
    lines = [columns, ["---", *["---:"] * (len(columns) - 1)], *escaped]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)
