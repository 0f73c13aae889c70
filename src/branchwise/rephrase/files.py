"""What the work leaves on disk: the data with its rephrasings, their records, the rejections, the store of replies."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from branchwise.config import ConfigError
from branchwise.data.load import Rows
from branchwise.rephrase.work import Outcome

SUFFIXES = (".jsonl", ".parquet")


@dataclass(frozen=True, slots=True)
class Paths:
    """The files beside `out`, which itself is the data."""

    out: Path

    @property
    def records(self) -> Path:
        """A line for each rephrasing: model, kind, prompt version, settings, seed, tokens."""
        return self.out.with_suffix(".records.jsonl")

    @property
    def rejected(self) -> Path:
        """A line for each rejected reply, with its reason."""
        return self.out.with_suffix(".rejected.jsonl")

    @property
    def store(self) -> Path:
        """Every reply that came, so that none is asked for twice."""
        return self.out.with_suffix(".replies.sqlite")


def check_out(out: Path, data: str) -> Path:
    """
    Raises:
        ConfigError: a kind of file that cannot hold every column, no place for it, or the data's own.
    """
    if out.suffix not in SUFFIXES:
        raise ConfigError(f"--out: {out} ends in {out.suffix or 'nothing'!r}; write {' or '.join(SUFFIXES)}")
    if not out.parent.is_dir():
        raise ConfigError(f"--out: there is no folder {out.parent}")
    if out.is_dir() or not os.access(out.parent, os.W_OK):
        raise ConfigError(f"--out: {out} cannot be written; name another file")
    if out.exists() and Path(data).exists() and out.samefile(data):
        raise ConfigError(f"--out: {out} is the file that is read; name another")
    return out


def check_rows(out: Path, table: Rows) -> None:
    """Whether `out` can hold every column, asked before anything is paid for.

    Raises:
        ConfigError: a value that JSON cannot hold, or a column of several types, which Parquet cannot.
    """
    if out.suffix == ".jsonl":
        for number, row in enumerate(table.rows, start=1):
            _line(row, number)
    else:
        for column in table.columns:
            _one_type([row.get(column) for row in table.rows], column)


def write_data(out: Path, table: Rows, outcomes: Sequence[Outcome]) -> None:
    """All rows in their order with every column, and `rephrasings`, a list of texts (empty where there is none)."""
    texts = {outcome.item.row: outcome.texts for outcome in outcomes}
    rows = [{**row, "rephrasings": texts.get(number, [])} for number, row in enumerate(table.rows, start=1)]
    if out.suffix == ".parquet":
        _write_parquet(out, rows)
    else:
        write_lines(out, (_line(row, number) for number, row in enumerate(rows, start=1)))


def write_records(paths: Paths, outcomes: Sequence[Outcome]) -> None:
    """Records and rejections, in the rows' order."""
    write_lines(paths.records, (_line(r, 0) for outcome in outcomes for r in outcome.accepted))
    write_lines(paths.rejected, (_line(r, 0) for outcome in outcomes for r in outcome.rejected))


def write_lines(path: Path, lines: Iterable[str]) -> None:
    """Write a file whole or not at all: beside its place, to the disk, then by renaming."""
    unfinished = path.with_name(path.name + ".unfinished")
    with unfinished.open("w", encoding="utf-8", newline="\n") as file:
        for line in lines:
            file.write(line + "\n")
        file.flush()
        os.fsync(file.fileno())
    _rename(unfinished, path)


def _one_type(values: list[Any], column: str) -> None:
    import pyarrow

    try:
        pyarrow.array(values)
    except (pyarrow.ArrowException, OverflowError) as error:
        why = str(error).partition("\n")[0]
        raise ConfigError(
            f"--out: the column {column!r} cannot stand in a .parquet file ({why}); write to a .jsonl file"
        ) from None


def _write_parquet(path: Path, rows: list[dict[str, Any]]) -> None:
    import pyarrow
    import pyarrow.parquet

    unfinished = path.with_name(path.name + ".unfinished")
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), unfinished)
    with unfinished.open("rb") as file:
        os.fsync(file.fileno())
    _rename(unfinished, path)


def _rename(unfinished: Path, path: Path) -> None:
    os.replace(unfinished, path)
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def _line(row: dict[str, Any], number: int) -> str:
    try:
        return json.dumps(row, ensure_ascii=False)
    except TypeError:
        column = next(_unwritable(row))
        raise ConfigError(
            f"--out: row {number} holds a {type(row[column]).__name__} in the column {column!r}, which JSON cannot "
            "hold; write to a .parquet file"
        ) from None


def _unwritable(row: dict[str, Any]) -> Iterator[str]:
    for column, value in row.items():
        try:
            json.dumps(value)
        except TypeError:
            yield column
