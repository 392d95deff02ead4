"""``firth extend``: add frequent words of a domain's text to a model's vocabulary."""

import dataclasses
import hashlib
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch
from jaxtyping import Float
from torch import Tensor

from firth.corpus.extend_report import Change, ExtendReport, NewToken, write_extend_report
from firth.corpus.hold_out import is_held_out
from firth.data.batch import Objective
from firth.errors import ConfigError, FirthError, InputError
from firth.files import check_new, make_folder
from firth.folder import PRETRAINING, Loaded, write_model
from firth.formats.table import open_model
from firth.progress import Progress, say
from firth.tasks.table import TASKS
from firth.text.added_tokens import (
    check_extendable,
    choose_pieces,
    count_pieces,
    count_split_words,
    extended,
    greedy_pieces,
    measure_fit,
    text_runs,
)
from firth.text.corpus import CorpusReader
from firth.text.tokenizer import Tokenizer
from firth.text.wordpiece import MAX_TYPES, WordCounts

HELD_OUT = 0.1  # share of the documents held out to evaluate the tokens chosen from the others
_SHOWN = 30  # new tokens shown in the report
# Distinct runs of characters between white space in a block; in text without white space, these are whole paragraphs.
_BLOCK_RUNS = 100_000


@dataclass(slots=True)
class _Part:
    """The documents to choose tokens from, or those held out; their words are counted block by block."""

    counts: WordCounts
    documents: int = 0
    _runs: Counter[str] = dataclasses.field(default_factory=Counter)

    @property
    def words(self) -> Mapping[str, int]:
        """The words and their counts."""
        return self.counts.counts

    def add(self, paragraphs: Sequence[str], tokenizer: Tokenizer) -> None:
        """Add a document."""
        self.documents += 1
        self._runs.update(text_runs(paragraphs))
        if len(self._runs) > _BLOCK_RUNS:
            self.finish(tokenizer)

    def finish(self, tokenizer: Tokenizer) -> None:
        """Count the words added since the last block."""
        self.counts.add(count_split_words(self._runs, tokenizer))
        self._runs.clear()


def extend(
    model: str | Path,
    paths: Sequence[str | Path],
    out: str | Path,
    *,
    tokens: int = 2000,
    errors: Literal["replace", "strict"] = "replace",
    max_types: int = MAX_TYPES,
    tell: Callable[[str], None] = say,
) -> ExtendReport:
    """Add up to ``tokens`` WordPiece tokens of a text to a model of any kind, and write the model folder ``out``.

    Existing tokens keep their ids and weights. A new one is initialised with the mean of the tokens that it replaces.
    The text is streamed; ``max_types`` limits the number of distinct words held.
    """
    out = Path(out)
    if tokens < 1:
        raise ConfigError(f"tokens={tokens}: expected at least 1")
    check_new(out)
    loaded = open_model(model)
    check_extendable(loaded.tokenizer)
    reader = CorpusReader(paths, errors)
    text, held, digest = _read(reader, loaded.tokenizer, max_types)
    chosen = _choose(text.words, loaded.tokenizer, tokens, reader)
    if len(chosen) < tokens:
        tell(f"only {len(chosen):,} of {tokens:,} new tokens are useful for this text: adding these")
    tokenizer = extended(loaded.tokenizer, chosen)
    report = _report(loaded, tokenizer, chosen, tokens, text, held, reader)
    objective = extended_objective(loaded, chosen)
    provenance = _provenance(loaded, model, tokenizer, report, digest)

    def fill(folder: Path) -> None:
        write_model(
            folder,
            loaded.system_name,
            loaded.task,
            objective,
            tokenizer,
            provenance,
            untrained=loaded.untrained,
            embedding=loaded.embedding,
        )
        try:
            write_extend_report(folder / "report.html", report, out.name)
        except FirthError as error:
            tell(f"no report.html: {error}")

    make_folder(out, fill)
    return report


def _read(reader: CorpusReader, tokenizer: Tokenizer, max_types: int) -> tuple[_Part, _Part, str]:
    """Read the text's words in two parts, and a hash of the text."""
    text, held, digest = _Part(WordCounts(max_types)), _Part(WordCounts(max_types)), hashlib.sha256()
    with Progress("count words", reader.total_bytes, "bytes") as progress:
        for document in reader:
            (held if is_held_out(document, HELD_OUT) else text).add(document.paragraphs, tokenizer)
            digest.update("\n".join([*document.paragraphs, ""]).encode("utf-8", "surrogatepass"))
            progress.advance(reader.bytes_consumed - progress.done)
    for part in (text, held):
        part.finish(tokenizer)
    if not text.words:  # with few documents all may be held out
        text, held = held, text
    if not text.words:
        raise InputError(f"no words in {reader.named} ({reader.report.documents} documents); give text of the domain")
    return text, held, digest.hexdigest()


def _choose(words: Mapping[str, int], tokenizer: Tokenizer, n: int, reader: CorpusReader) -> list[str]:
    with Progress("choose tokens", n, "tokens") as progress:
        chosen = choose_pieces(words, tokenizer.pieces, n, lambda done: progress.advance(done - progress.done))
    if not chosen:
        raise InputError(
            f"no new token is useful for {reader.named}: the vocabulary already keeps its words whole, except "
            f"those that occur once; give more text, or leave the model as it is"
        )
    return chosen


def extended_objective(loaded: Loaded, pieces: Sequence[str]) -> Objective:
    """Extend the model's vocabulary-sized weights by one row for each new token."""
    old = loaded.objective
    ids = {piece: i for i, piece in enumerate(loaded.tokenizer.pieces)}
    parts = [[ids[part] for part in greedy_pieces(piece, ids)] for piece in pieces]
    config: Any = dataclasses.replace(old.encoder.config, vocab_size=len(ids) + len(pieces))
    make: Callable[[Any, Any], Objective] = (
        loaded.system.objective if loaded.task == PRETRAINING else TASKS[loaded.task].model
    )
    new, found = make(loaded.system.encoder(config), old.config), old.state_dict()
    new.load_state_dict(
        {
            name: found[name] if tensor.shape == found[name].shape else mean_rows(found[name], parts)
            for name, tensor in new.state_dict().items()
        }
    )
    return new.eval()


def mean_rows(rows: Float[Tensor, "V *H"], parts: Sequence[Sequence[int]]) -> Float[Tensor, "W *H"]:
    """Append a row to those of a vocabulary for each new token: the mean of its parts' rows."""
    return torch.cat([rows, torch.stack([rows[list(some)].mean(0) for some in parts])])


def _report(
    loaded: Loaded,
    tokenizer: Tokenizer,
    chosen: Sequence[str],
    asked: int,
    text: _Part,
    held: _Part,
    reader: CorpusReader,
) -> ExtendReport:
    changes = []
    with Progress("measure", 4, "passes") as progress:
        for part in (text, held):
            fits = []
            for some in (loaded.tokenizer, tokenizer):
                fits.append(measure_fit(some, part.words))
                progress.advance(1)
            changes.append(Change(*fits))
    counts, new, old = count_pieces(tokenizer, text.words), set(chosen), set(loaded.tokenizer.pieces)
    often = sorted(new, key=lambda piece: (-counts[piece], piece))[:_SHOWN]
    read = reader.report
    return ExtendReport(
        system=loaded.system_name,
        task=loaded.task,
        size_before=loaded.tokenizer.size,
        size_after=tokenizer.size,
        asked=asked,
        documents=text.documents,
        held_documents=held.documents,
        text=changes[0],
        held_out=changes[1] if held.words else None,
        frequent=tuple(NewToken(piece, counts[piece], tuple(greedy_pieces(piece, old))) for piece in often),
        pruned_words=text.counts.pruned_occurrences + held.counts.pruned_occurrences,
        bad_bytes=read.bad_bytes,
        bad_places=tuple(read.bad_places),
        cut_lines=read.cut_lines,
        cut_documents=read.cut_documents,
    )


def _provenance(
    loaded: Loaded, model: str | Path, tokenizer: Tokenizer, report: ExtendReport, digest: str
) -> dict[str, Any]:
    """Add this extension to the provenance; a model may be extended more than once."""
    before = {key: value for key, value in loaded.provenance.items() if key not in ("firth", "torch", "python")}
    step = {
        "from": str(model),
        "tokens": [report.size_before, report.size_after],
        "tokenizer": [loaded.tokenizer.fingerprint, tokenizer.fingerprint],
        "text": digest,
        "documents": report.documents,
        "held_documents": report.held_documents,
        "tokens_per_word": [round(fit.tokens_per_word, 4) for fit in (report.text.before, report.text.after)],
    }
    return before | {"extended": [*before.get("extended", []), step]}
