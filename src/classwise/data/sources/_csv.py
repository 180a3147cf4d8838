"""CSV files as columns of text, with the line that each row ends on."""

from __future__ import annotations

import csv
import io
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

from classwise.data._text import read_text
from classwise.data.findings import Findings, shown
from classwise.errors import DataError

__all__ = ["Table", "read_csv"]

_DELIMITERS = ",;\t|"


@dataclass(frozen=True)
class Table:
    """Cells of a CSV file.

    Args:
        path: where it lies.
        header: the columns' names.
        rows: the cells of each row, stripped, as many as there are columns.
        lines: the line of the file that each row ends on.
    """

    path: Path
    header: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    lines: tuple[int, ...]

    def column(self, name: str) -> list[str]:
        """Return the cells of one column."""
        index = self.header.index(name)
        return [row[index] for row in self.rows]

    def take(self, indices: list[int]) -> Table:
        """Return some of the rows."""
        rows, lines = self.rows, self.lines
        return Table(
            self.path,
            self.header,
            tuple(rows[i] for i in indices),
            tuple(lines[i] for i in indices),
        )


def read_csv(path: Path, findings: Findings) -> Table:
    """Read a CSV file whose first line names its columns.

    What parts the cells is the one of ``, ; tab |`` that the first line has most of. Rows of
    another length are told to ``findings`` and left out.
    """
    where = shown(path)
    text = read_text(path).lstrip("\r\n")
    first = text.split("\n", 1)[0]
    delimiter = max(_DELIMITERS, key=first.count)
    reader = csv.reader(io.StringIO(text, newline=""), delimiter=delimiter, strict=True)
    rows, lines = [], []
    try:
        header = tuple(name.strip() for name in next(reader, []))
        for row in reader:
            if len(row) == len(header):
                rows.append(tuple(cell.strip() for cell in row))
                lines.append(reader.line_num)
            elif row:
                detail = f"line {reader.line_num}: {len(row)} cells, {len(header)} columns"
                findings.add("row of another length", path.name, detail)
    except csv.Error as error:
        raise DataError(f"{where}: line {reader.line_num}: {error}.") from error
    _check_header(where, header)
    if not rows:
        findings.check(str(path))
        raise DataError(f"{where} has a header but no rows.")
    return Table(path, header, tuple(rows), tuple(lines))


def _check_header(where: str, header: tuple[str, ...]) -> None:
    for name, times in Counter(header).items():
        if not name:
            raise DataError(
                f"{where}: column {header.index('') + 1} has no name in the first line."
            )
        if times > 1:
            raise DataError(f"{where}: {times} columns are called {shown(name)!r}.")
