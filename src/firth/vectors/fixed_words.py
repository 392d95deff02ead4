"""Fixed word vectors as the input embeddings of CoVe's encoder."""

import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from firth.convert.hf_mapping import Findings
from firth.convert.word_vectors import VectorFile
from firth.errors import ConfigError
from firth.files import saving
from firth.folder import PRETRAINING, Loaded
from firth.models.mtlstm import MtLstm
from firth.text.tokenizer import Tokenizer
from firth.text.tokenizer_kinds import WORDS
from firth.vectors.folder import Table, VectorOptions, gather, open_source, vectors_for

# Vectors from the same training differ in rounding, and for some words that have several spellings.
_SAME_SHARE, _SAME_WITHIN = 0.95, 1e-3
_AT_ONCE = 10_000  # rows


def fill_words(encoder: MtLstm, tokenizer: Tokenizer, path: str) -> str:
    """Copy the vectors of the vocabulary's words into the table; returns a sentence that says how many there are.

    Words without a vector, the unknown word and all other special ones are zeros (specification §1). For a word that
    the file has only with capitals, a lower-cased vocabulary uses the first such form. ``path``: a file of word
    vectors, or a model folder. ConfigError if the vectors have another width, or cover no word of the vocabulary.
    """
    file = _of_width(encoder, path)
    if tokenizer.kind is not WORDS:
        raise ConfigError(
            f"vectors={path!r} are of whole words, the corpus has tokens of the kind {tokenizer.kind.name}: prepare it "
            "with another vocabulary (firth vocab --kind words)"
        )
    # Files of word2vec and fastText begin with a vector for </s>, which marks the end of a line there.
    place = {piece: i for i, piece in enumerate(tokenizer.pieces) if i not in tokenizer.special_ids}
    table, found = encoder.words.data.zero_(), set[str]()
    for word, row in vectors_for(file, place, lowercase=tokenizer.lowercase):
        table[place[word]] = torch.from_numpy(row)
        found.add(word)
    if not found:
        raise ConfigError(f"vectors={path!r} has a vector for none of the {len(place):,} words of the vocabulary")
    return f"{path} has vectors for {len(found):,} of the {len(place):,} words of the vocabulary; the others are zeros"


def over_words(loaded: Loaded, path: str | Path, out: Path) -> tuple[Loaded, Findings]:
    """Rebuild the encoder over all words that have a vector in ``path``; also return findings for the user.

    What a layer computes from vectors does not depend on the number of words. The vectors must come from the same
    training as those that the encoder learnt with. A decoder, which generates the old words, is dropped. ``out``: the
    folder that will hold the result; the table is a temporary file beside it. ConfigError for a model without a fixed
    table, and for vectors of another width or from another training; SaveError for a full disk.
    """
    encoder = loaded.objective.encoder
    if not isinstance(encoder, MtLstm) or not encoder.config.fixed_words:
        raise ConfigError(
            f"--vectors is for encoders that read word vectors as they are (cove): this model is {loaded.system_name}, "
            "which has learnt its own"
        )
    file = _of_width(encoder, path)
    out.parent.mkdir(parents=True, exist_ok=True)
    with saving(out), tempfile.TemporaryFile(dir=out.parent) as rows:
        table = gather(file, rows, VectorOptions(lowercase=loaded.tokenizer.lowercase), None)
    n_known, n_lacking = _compare(encoder.words, loaded.tokenizer, table, path)
    tokenizer = loaded.tokenizer.with_words(table.words)
    table.rows[list(tokenizer.special_ids)] = 0
    state = {name: t for name, t in loaded.objective.state_dict().items() if not name.startswith("decoder.")}
    options = loaded.objective.config
    if loaded.task == PRETRAINING:
        options = replace(options, decoder=False)
    make: Any = type(loaded.objective)
    with torch.device("meta"):
        objective = make(MtLstm(replace(encoder.config, vocab_size=tokenizer.size)), options)
    objective.load_state_dict(state | {"encoder.words": torch.from_numpy(table.rows)}, assign=True)
    n_words = tokenizer.size - len(tokenizer.special_ids)
    facts = [("words", f"{n_words:,} of {path}; any other is zeros")]
    if n_lacking:
        facts.append(("lacking", f"{n_lacking:,} of the {n_known:,} words that the model had vectors of: now zeros"))
    if getattr(loaded.objective, "decoder", None) is not None:
        facts.append(("left out", "the decoder: this model serves tasks, and translates nothing"))
    provenance = loaded.provenance | {"words": {"from": str(path), "format": file.format}}
    return replace(loaded, objective=objective.eval(), tokenizer=tokenizer, provenance=provenance), facts


def _compare(rows: Tensor, tokenizer: Tokenizer, table: Table, path: str | Path) -> tuple[int, int]:
    """Count the words for which the model has a vector in ``rows`` (V, H), and those of them that ``table`` lacks.

    ConfigError if shared words have different vectors there: the encoder would read noise. A model without vectors, as
    CoVe was released, has nothing to compare.
    """
    old, pieces = rows.detach().float().numpy(), tokenizer.pieces
    places = {word: i for i, word in enumerate(table.words)}
    known = [i for i in np.flatnonzero(old.any(1)).tolist() if i not in tokenizer.special_ids]
    shared = [i for i in known if pieces[i] in places]
    other: list[int] = []
    for begin in range(0, len(shared), _AT_ONCE):
        some = np.array(shared[begin : begin + _AT_ONCE])
        theirs = table.rows[[places[pieces[i]] for i in some]]
        other += some[~np.isclose(theirs, old[some], _SAME_WITHIN, _SAME_WITHIN).all(1)].tolist()
    if len(other) > (1 - _SAME_SHARE) * len(shared):
        raise ConfigError(
            f"{path} has another vector than the model for {len(other):,} of the {len(shared):,} words of both, such "
            f"as {pieces[other[0]]!r}: give vectors of the make that the model learnt with"
        )
    return len(known), len(known) - len(shared)


def _of_width(encoder: MtLstm, path: str | Path) -> VectorFile:
    file, _ = open_source(path)
    if file.width != encoder.config.width:
        raise ConfigError(
            f"{path} has vectors of width {file.width}, the encoder reads {encoder.config.width}: give others, or for "
            f"a new model set encoder.width={file.width}"
        )
    return file
