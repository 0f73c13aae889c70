"""Tables as they are: files, datasets and generated tasks, read into rows."""

from __future__ import annotations

import csv
import json
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

from branchwise.config import ConfigError, Source

GYM = "reasoning_gym:"
_HALF = re.compile(rb"\\u[dD][89a-fA-F]")
"""The escape of half a surrogate pair; most come in twos."""


class DataError(ConfigError):
    """Data that cannot be read or used, with what would be right."""


@dataclass(frozen=True, slots=True)
class Rows:
    """A table as it was read."""

    name: str
    """What errors and reports call it."""
    rows: list[dict[str, Any]]
    folder: Path = Path()
    """Where relative paths in it begin."""

    @property
    def columns(self) -> list[str]:
        """Every column that some row has, in order of appearance."""
        return list(dict.fromkeys(column for row in self.rows for column in row))


def load_rows(source: Rows | Source | Iterable[Mapping[str, Any]]) -> Rows:
    """Read a JSONL, JSON, CSV or Parquet file, `reasoning_gym:TASK`, a Hugging Face dataset id, or rows in memory.

    Raises:
        DataError: the file is missing or broken (with its line), or the dataset cannot be had.
    """
    if isinstance(source, Rows):
        return source
    if not isinstance(source, Source):
        return Rows("the dataset", [_as_row(row) for row in source])
    if source.path.startswith(GYM):
        return Rows(source.path, _generate(source))
    path = Path(source.path)
    readers = {".jsonl": _read_json, ".json": _read_json, ".csv": _read_csv, ".parquet": _read_parquet}
    if (read := readers.get(path.suffix.lower())) is None:
        return Rows(source.path, _download(source))
    if not path.is_file():
        raise DataError(f"{path}: no such file")
    return Rows(source.path, list(islice(read(path), source.limit)), path.parent)


def _as_row(row: Any) -> dict[str, Any]:
    if not isinstance(row, Mapping):
        raise DataError(f"a dataset is rows of named columns, but it holds {row!r}; of a DatasetDict give one split")
    return dict(row)


def _read_json(path: Path) -> Iterator[dict[str, Any]]:
    """A list of objects, or one object a line. Lines end at LF alone: texts may hold U+2028 and its like."""
    with path.open("rb") as file:
        text = file.read(4096).removeprefix(b"\xef\xbb\xbf").lstrip()
        file.seek(0)
        if text.startswith(b"["):
            yield from _json_list(path, file.read())
            return
        for number, line in enumerate(file, start=1):
            line = line.removeprefix(b"\xef\xbb\xbf") if number == 1 else line
            if line.strip():
                yield _json_object(line, f"{path}, line {number}")


def _json_list(path: Path, data: bytes) -> Iterator[dict[str, Any]]:
    rows = _parse_json(data.removeprefix(b"\xef\xbb\xbf"), str(path))
    for number, row in enumerate(rows, start=1):
        yield _expect_object(row, f"{path}, entry {number}")


def _json_object(line: bytes, place: str) -> dict[str, Any]:
    return _expect_object(_parse_json(line, place), place)


def _parse_json(data: bytes, place: str) -> Any:
    try:
        value = json.loads(data.decode("utf-8"))
        if _HALF.search(data):
            json.dumps(value, ensure_ascii=False).encode("utf-8")
        return value
    except UnicodeDecodeError as error:
        raise DataError(f"{place}: not UTF-8 ({error.reason} at byte {error.start}); save the file as UTF-8") from None
    except json.JSONDecodeError as error:
        raise DataError(
            f"{place}: not JSON ({error.msg}, column {error.colno}): is it cut short? "
            "A file is one object a line, or one list of objects"
        ) from None
    except UnicodeEncodeError:
        raise DataError(f"{place}: holds half of a surrogate pair (\\ud800 to \\udfff), which is no text") from None
    except (ValueError, RecursionError) as error:  # a number of thousands of digits, brackets thousands deep
        raise DataError(f"{place}: JSON that cannot be read ({error})") from None


def _expect_object(row: Any, place: str) -> dict[str, Any]:
    if not isinstance(row, dict):
        raise DataError(f"{place}: a row is an object of named columns, this is {json.dumps(row)[:80]}")
    return row


def _read_csv(path: Path) -> Iterator[dict[str, Any]]:
    with path.open(encoding="utf-8-sig", newline="") as file:
        reader = csv.DictReader(file, strict=True)  # a quote that is never closed is an error, not a long cell
        try:
            columns = reader.fieldnames = [name.strip() for name in reader.fieldnames or ()]
            if twice := [name for name in columns if columns.count(name) > 1]:
                raise DataError(f"{path}: the header names the column {twice[0]!r} twice")
            for row in reader:
                if None in row or None in row.values():
                    which = "more" if None in row else "fewer"
                    raise DataError(
                        f"{path}, line {reader.line_num}: {which} cells than the header's {len(columns)} columns"
                    )
                yield row
        except (csv.Error, UnicodeDecodeError) as error:
            raise DataError(f"{path}, line {reader.line_num + 1}: not CSV in UTF-8 ({error})") from None


def _read_parquet(path: Path) -> Iterator[dict[str, Any]]:
    import pyarrow.parquet as parquet
    from pyarrow import ArrowException

    try:
        for batch in parquet.ParquetFile(path).iter_batches():
            yield from batch.to_pylist()
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
