"""Read texts from a Parquet file, row group by row group; needs the extra ``data``."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from firth.errors import InputError
from firth.remote import RemotePath

COLUMN = "text"
_ROWS = 1000


def texts_of_parquet(path: Path, moved: Callable[[int], None]) -> Iterator[tuple[int, str]]:
    """Yield (row number from 1, text) from the column "text"; rows without text are skipped.

    ``moved`` receives the number of file bytes that each reading step covers. InputError for a file that is not
    Parquet or has no such column of strings.
    """
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError:
        raise InputError(f"{path}: reading Parquet needs the extra: pip install 'firth[data]'") from None
    size, number = path.stat().st_size, 0
    try:
        with pyarrow.parquet.ParquetFile(path.open("rb") if isinstance(path, RemotePath) else path) as file:
            _check(path, file.schema_arrow, pyarrow)
            rows = max(file.metadata.num_rows, 1)
            for batch in file.iter_batches(_ROWS, columns=[COLUMN]):
                for value in batch.column(0):
                    number += 1
                    moved(size * number // rows - size * (number - 1) // rows)
                    if text := value.as_py():
                        yield number, text
    except UnicodeDecodeError:
        raise InputError(f"{path}: row {number}: not UTF-8; write the column again as UTF-8") from None
    except (pyarrow.ArrowException, OSError) as error:
        raise InputError(f"{path}: cannot be read as Parquet: {str(error).splitlines()[0]}") from None


def _check(path: Path, schema: Any, pyarrow: Any) -> None:
    if COLUMN not in schema.names:
        names = ", ".join(schema.names)
        raise InputError(f'{path}: no column "{COLUMN}" (columns: {names}); rename the one that has it')
    kind = schema.field(COLUMN).type
    if not (pyarrow.types.is_string(kind) or pyarrow.types.is_large_string(kind) or pyarrow.types.is_string_view(kind)):
        raise InputError(f'{path}: the column "{COLUMN}" must hold strings, not {kind}')
