"""Read claims to check against evidence: JSON lines ``{"claim", "evidence", "label"}``."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from firth.errors import InputError
from firth.tasks.readers.files import Problems, check_records, kind_of, make_each, name_of, read_jsonl, text_field
from firth.text.records import Text

# The labels of FEVER (Thorne et al. 2018).
VERDICTS = ("SUPPORTS", "REFUTES", "NOT ENOUGH INFO")


def read_facts(path: Path, problems: Problems, *, labelled: bool = True) -> Iterator[Text]:
    """Read pairs of claim and evidence, and the verdict of the evidence on the claim.

    ``evidence``: a text, a list of texts (read one after the other), or empty for a claim without any. ``id`` is kept.
    Other fields are ignored. Rows of a test file may lack the label.
    """

    def make(item: tuple[int, dict[str, Any]]) -> Text:
        number, row = item
        where = f"{path}:{number}"
        label = text_field(row, "label", where) if labelled else None
        if label is not None and label not in VERDICTS:
            raise InputError(f"{where}: found the label {label[:40]!r}, expected one of {', '.join(VERDICTS)}")
        return Text(
            text_field(row, "claim", where), label, where, second=_evidence(row, where), id=name_of(row, "id", where)
        )

    return check_records(path, make_each(read_jsonl(path, problems), make, problems), problems)


def _evidence(row: dict[str, Any], where: str) -> str:
    found = row.get("evidence")
    texts = found if isinstance(found, list) else [found]
    if "evidence" not in row or not all(isinstance(text, str) for text in texts):
        kinds = ", ".join(sorted({kind_of(text) for text in texts}))
        raise InputError(
            f'{where}: found {kinds} as "evidence", expected a text or a list of texts (page and line numbers of FEVER '
            "are to be replaced by the sentences they stand for)"
        )
    return " ".join(text for text in texts if text)
