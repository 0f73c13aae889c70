"""Tables as they are: files, datasets and generated tasks, read into rows."""

from __future__ import annotations

import csv
import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any

from branchwise.config import ConfigError, Source

GYM = "reasoning_gym:"
FILES = (".jsonl", ".json", ".csv", ".parquet")
BOM = b"\xef\xbb\xbf"
"""Of UTF-8; some editors begin a file with it."""
_HALF = re.compile(rb"\\u[dD][89a-fA-F]")
"""The escape of half a surrogate pair; most come in twos."""


class DataError(ConfigError):
    """Data that cannot be read or used, with what would be right."""


class Unreadable(ValueError):
    """Why a line holds no row."""


Numbered = tuple[int, dict[str, Any] | Unreadable]
"""A row's number, and the row or why there is none."""


@dataclass(frozen=True, slots=True)
class Rows:
    """A table as it was read."""

    name: str
    """What errors and reports call it: the file's path, where it is one."""
    rows: list[dict[str, Any]]
    numbers: list[int] | None = None
    """What each row goes by in its file: its line (JSONL, CSV), else its place. None: 1, 2, 3, …"""
    unit: str = "row"
    """What the numbers count."""
    unreadable: dict[int, str] = field(default_factory=dict)
    """Lines that hold no row, by number, with the reason."""
    folder: Path = Path()
    """Where relative paths in it begin."""

    def numbered(self) -> Iterator[tuple[int, dict[str, Any]]]:
        return zip(self.numbers or range(1, len(self.rows) + 1), self.rows, strict=True)

    def intact(self) -> Rows:
        """Itself.

        Raises:
            DataError: a line could not be read.
        """
        for number, reason in self.unreadable.items():
            raise DataError(f"{self.name}, {self.unit} {number}: {reason}")
        return self

    @property
    def columns(self) -> list[str]:
        """Every column that some row has, in order of appearance."""
        return list(dict.fromkeys(column for row in self.rows for column in row))


def load_rows(source: Rows | Source | Iterable[Mapping[str, Any]]) -> Rows:
    """Read a JSONL, JSON, CSV or Parquet file, `reasoning_gym:TASK`, a Hugging Face dataset id, or rows in memory.

    A line that cannot be read is noted in `unreadable`, and the others are read all the same.

    Raises:
        DataError: the file is missing or broken as a whole, or the dataset cannot be had.
    """
    if isinstance(source, Rows):
        return source
    if not isinstance(source, Source):
        return Rows("the dataset", [_as_row(row) for row in source])
    if source.path.startswith(GYM):
        return Rows(source.path, _generate(source))
    path = Path(source.path)
    suffix = path.suffix.lower()
    if suffix not in FILES:
        return Rows(source.path, _download(source))
    if not path.is_file():
        raise DataError(f"{path}: no such file")
    read, unit = _reader(path, suffix)
    rows: dict[int, dict[str, Any]] = {}
    unreadable: dict[int, str] = {}
    for number, row in islice(read(path), source.limit):
        if isinstance(row, Unreadable):
            unreadable[number] = str(row)
        else:
            rows[number] = row
    return Rows(source.path, list(rows.values()), list(rows), unit, unreadable, path.parent)


def _reader(path: Path, suffix: str) -> tuple[Callable[[Path], Iterator[Numbered]], str]:
    """What reads a file, and what its numbers count."""
    if suffix == ".parquet":
        return _read_parquet, "row"
    if suffix == ".csv":
        return _read_csv, "line"
    return (_read_json_list, "row") if _holds_list(path) else (_read_json_lines, "line")


def _as_row(row: Any) -> dict[str, Any]:
    if not isinstance(row, Mapping):
        raise DataError(f"a dataset is rows of named columns, but it holds {row!r}; of a DatasetDict give one split")
    return dict(row)


def _holds_list(path: Path) -> bool:
    with path.open("rb") as file:
        return file.read(4096).removeprefix(BOM).lstrip().startswith(b"[")


def _read_json_list(path: Path) -> Iterator[Numbered]:
    try:
        rows = _parse_json(path.read_bytes().removeprefix(BOM))
    except Unreadable as error:
        raise DataError(f"{path}: {error}") from None
    for number, row in enumerate(rows, start=1):
        yield number, _attempt(_object, row)


def _read_json_lines(path: Path) -> Iterator[Numbered]:
    """One object a line. Lines end at LF alone: texts may hold U+2028 and its like."""
    with path.open("rb") as file:
        for number, line in enumerate(file, start=1):
            line = line.removeprefix(BOM) if number == 1 else line
            if line.strip():
                yield number, _attempt(lambda line: _object(_parse_json(line)), line)


def _attempt(parse: Callable[[Any], dict[str, Any]], given: Any) -> dict[str, Any] | Unreadable:
    try:
        return parse(given)
    except Unreadable as error:
        return error


def _parse_json(data: bytes) -> Any:
    try:
        value = json.loads(data.decode("utf-8"))
        if _HALF.search(data):
            json.dumps(value, ensure_ascii=False).encode("utf-8")
        return value
    except UnicodeDecodeError as error:
        raise Unreadable(f"not UTF-8 ({error.reason} at byte {error.start}); save the file as UTF-8") from None
    except json.JSONDecodeError as error:
        raise Unreadable(
            f"not JSON ({error.msg}, column {error.colno}): is it cut short? "
            "A file is one object a line, or one list of objects"
        ) from None
    except UnicodeEncodeError:
        raise Unreadable("holds half of a surrogate pair (\\ud800 to \\udfff), which is no text") from None
    except (ValueError, RecursionError) as error:  # a number of thousands of digits, brackets thousands deep
        raise Unreadable(f"JSON that cannot be read ({error})") from None


def _object(row: Any) -> dict[str, Any]:
    if not isinstance(row, dict):
        raise Unreadable(f"a row is an object of named columns, this is {json.dumps(row)[:80]}")
    return row


def _read_csv(path: Path) -> Iterator[Numbered]:
    with path.open(encoding="utf-8-sig", newline="") as file:
        reader = csv.DictReader(file, strict=True)  # a quote that is never closed is an error, not a long cell
        try:
            columns = reader.fieldnames = [name.strip() for name in reader.fieldnames or ()]
            if twice := [name for name in columns if columns.count(name) > 1]:
                raise DataError(f"{path}: the header names the column {twice[0]!r} twice")
            for row in reader:
                if None in row or None in row.values():
                    which = "more" if None in row else "fewer"
                    yield reader.line_num, Unreadable(f"{which} cells than the header's {len(columns)} columns")
                else:
                    yield reader.line_num, row
        except (csv.Error, UnicodeDecodeError) as error:
            raise DataError(f"{path}, line {reader.line_num + 1}: not CSV in UTF-8 ({error})") from None


def _read_parquet(path: Path) -> Iterator[Numbered]:
    import pyarrow.parquet as parquet
    from pyarrow import ArrowException

    try:
        yield from enumerate(
            (row for batch in parquet.ParquetFile(path).iter_batches() for row in batch.to_pylist()), start=1
        )
    except (ArrowException, OSError) as error:
        raise DataError(f"{path}: not readable as Parquet ({error})") from None


def _download(source: Source) -> list[dict[str, Any]]:
    import datasets

    try:
        table = datasets.load_dataset(source.path, name=source.subset, split=source.split)
    except Exception as error:  # the hub's client raises many kinds, offline ones among them
        raise DataError(
            f"{source.path}: neither a .jsonl, .json, .csv or .parquet file nor a dataset that the Hugging Face Hub "
            f"gave ({type(error).__name__}: {error}); check path, split and subset, or give a file"
        ) from error
    return [dict(row) for row in islice(table, source.limit)]


def _generate(source: Source) -> list[dict[str, Any]]:
    """Problems of a reasoning-gym task; each keeps what its own scorer needs."""
    try:
        import reasoning_gym
    except ImportError:
        raise DataError(f"{source.path}: needs reasoning-gym; pip install 'branchwise[gym]'") from None
    task = source.path.removeprefix(GYM)
    args = {"seed": 0, **source.args}
    try:
        problems = reasoning_gym.create_dataset(task, size=source.limit or 500, **args)
    except (ValueError, TypeError, AssertionError) as error:
        raise DataError(f"{source.path} with args {args}: {error}") from None
    return [{**problem, "reasoning_gym": {"task": task, "args": args}} for problem in problems]
