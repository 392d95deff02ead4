"""``firth vectors``: word vectors read, trained, looked up and tested."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from cyclopts import App, Parameter, validators

from firth.cli.shared import (
    Flag,
    JsonFlag,
    Texts,
    check_text,
    counted,
    lines_from,
    on_interrupt,
    print_json,
    print_next,
    print_table,
)
from firth.config import from_dict, override
from firth.errors import FirthError, InputError
from firth.progress import say

if TYPE_CHECKING:
    from firth.inference.word_table import Neighbour
    from firth.vectors.folder import VectorsReport

Unknown = Literal["one", "shapes", "hashed", "ngrams"]
StandIn = Literal["rarest", "mean", "zero"]
Split = Literal["words", "blanks"]
Several = Annotated[list[str] | None, Parameter(name="--set", show_default=False)]
ModelPath = Annotated[Path, Parameter(name="MODEL")]
First = Annotated[int, Parameter(validator=validators.Number(gte=0))]
Count = Annotated[int, Parameter(validator=validators.Number(gte=1))]
_NOTHING = "no model was written; start again with the same command"

vectors = App(
    name="vectors",
    help="Read, train, look up and test word vectors: word2vec, GloVe, fastText.\n\n"
    "Example: firth vectors nearest models/glove Stockholm",
)


@vectors.command(sort_key=0)
def convert(
    source: Annotated[Path, Parameter(name="SOURCE")],
    /,
    *,
    to: Path,
    texts: Annotated[list[str] | None, Parameter(name="--texts", consume_multiple=True)] = None,
    min_count: Count = 1,
    max_words: First = 0,
    unknown: Unknown | None = None,
    stand_in: Annotated[StandIn | None, Parameter(show_default=False)] = None,
    buckets: Annotated[Count | None, Parameter(show_default=False)] = None,
    cased: Annotated[bool | None, Parameter(name="--cased", negative="--uncased", show_default=False)] = None,
    split: Annotated[Split | None, Parameter(show_default=False)] = None,
    glove_vocab: Path | None = None,
    as_json: JsonFlag = False,
) -> None:
    """Turn a file of word vectors into a model folder.

    What SOURCE is, is found out: text of GloVe, word2vec or fastText, word2vec's binary file, fastText's .bin.

    Example: firth vectors convert glove.6B.100d.txt --to models/glove

    Parameters
    ----------
    source
        The file, which may be packed as .gz or .xz (fastText's .bin may not); or a model folder of this kind, to make
        one of fewer words or with another rule for unknown ones.
    to
        The model folder to make.
    texts
        Keep only words that occur in these texts. All words of the file are kept if none are given: then words that
        no training text has still have their vectors.
    min_count
        With --texts: how often a word must occur there.
    max_words
        Keep only so many words, the first ones; 0: all.
    unknown
        A word outside the vocabulary has: one vector for all; one for its shape (number, capitals, …); one at random
        for its hash; or the mean of its n-grams'. If not given: ngrams where the file has them, else one; of a model
        folder its own rule, with its vectors.
    stand_in
        The one vector: the mean of the 100 rarest words, the mean of all, or zeros. If not given: the file's own <unk>,
        or else that of its rarest words.
    buckets
        With --unknown hashed: how many vectors there are; if not given, as many as the model folder has, else 1000.
    cased
        Whether text keeps its capital letters; if not given, whether words of the file have any.
    split
        Text is split at blanks and punctuation (words), or at blanks alone, where it is tokenised as the vectors were.
        If not given: words, or what a model folder has.
    glove_vocab
        The words of GloVe's binary file, which it does not hold itself.
    as_json
        Print the report as one JSON object.
    """
    from firth.vectors.folder import Reading, convert_vectors

    reading = Reading(
        glove_vocab=glove_vocab, texts=tuple(texts or ()), min_count=min_count, max_words=max_words,
        unknown=unknown, stand_in=stand_in, lowercase=None if cased is None else not cased, split=split,
        n_buckets=buckets,
    )  # fmt: skip
    with on_interrupt(_NOTHING):
        _report(convert_vectors(source, to, reading), as_json)


@vectors.command(sort_key=1)
def train(
    *texts: Texts,
    out: Path,
    kind: Literal["word2vec", "fasttext"] = "word2vec",
    algorithm: Literal["skip-gram", "cbow"] = "skip-gram",
    width: Count = 100,
    window: Count = 5,
    epochs: Count = 5,
    min_count: Count = 5,
    lowercase: Flag = False,
    workers: First = 0,
    unknown: Unknown | None = None,
    stand_in: Annotated[StandIn | None, Parameter(show_default=False)] = None,
    buckets: Annotated[Count | None, Parameter(show_default=False)] = None,
    split: Split = "words",
    settings: Several = None,
    as_json: JsonFlag = False,
) -> None:
    """Learn word vectors from text, with gensim.

    Example: firth vectors train wiki/*.txt.xz --kind fasttext --out runs/vectors

    Parameters
    ----------
    texts
        Files, folders or patterns: plain text (blank lines between documents) or JSONL, also .gz and .xz.
    out
        The model folder to make.
    kind
        fasttext: with n-grams of characters, of which words outside the vocabulary are made.
    algorithm
        A word predicts those around it, or the reverse.
    width
        Numbers of a vector.
    window
        Words on either side, at most.
    epochs
        Times that the text is read.
    min_count
        Times that a word must occur.
    lowercase
        Read text in lower case.
    workers
        Threads; 0: all processors. Only with 1 are two runs the same.
    unknown
        What a word outside the vocabulary has, as for firth vectors convert.
    stand_in
        The one vector of unknown words, as for firth vectors convert.
    buckets
        With --unknown hashed: how many vectors there are; 1000 if not given.
    split
        Text is split at blanks and punctuation, or at blanks alone, where it is tokenised already.
    settings
        Another option, such as --set negative=10: negative, sample, learning_rate, seed, n_buckets, shortest_ngram,
        longest_ngram.
    as_json
        Print the report as one JSON object.
    """
    from firth.vectors.folder import Reading
    from firth.vectors.train import VectorTraining, train_vectors

    plain = {
        "kind": kind, "algorithm": algorithm, "width": width, "window": window, "epochs": epochs,
        "min_count": min_count, "lowercase": lowercase, "workers": workers,
    }  # fmt: skip
    training = from_dict(VectorTraining, override(plain, settings or []), "--set")
    with on_interrupt(_NOTHING):
        reading = Reading(unknown=unknown, stand_in=stand_in, n_buckets=buckets, split=split)
        _report(train_vectors(texts, out, training, reading), as_json)


def _report(report: "VectorsReport", as_json: bool) -> None:
    if as_json:
        print_json(report)
        return
    unknown = {
        "one": "one vector for all", "shapes": f"one of {report.n_unknown} vectors, by its shape",
        "hashed": f"one of {report.n_unknown:,} vectors, by its hash",
        "ngrams": f"the mean of its n-grams, of {report.n_unknown:,} vectors",
    }[report.unknown]  # fmt: skip
    print(f"{report.out}: {counted(report.words, 'word')}, {report.width} numbers each")
    facts = [
        ("from", f"{report.source}, {report.format}"),
        ("text", "lower-cased" if report.lowercase else "cased"),
        ("split", "at blanks alone" if report.split == "blanks" else "at blanks and punctuation"),
        ("unknown word", unknown),
    ]
    if report.left_out:
        facts.append(("left out", f"{counted(report.left_out, 'word')} of the file"))
    print_table(facts)
    if report.repeated:
        print(f"  warning: {counted(report.repeated, 'word')} stood there again: the first vector holds")
    if report.not_utf8:
        print(f"  warning: {counted(report.not_utf8, 'word')} not UTF-8, read with U+FFFD in the place of what is not")
    if report.never_read:
        word = counted(report.never_read, "word")
        print(f"  warning: {word} of a form that text is never read as, such as {report.first_never_read!r}")
    print_next("firth", "vectors", "nearest", report.out, "WORD")


@vectors.command(sort_key=2)
def nearest(
    model: ModelPath,
    /,
    *words: Annotated[str, Parameter(name="WORD")],
    top_k: Count = 10,
    as_json: JsonFlag = False,
) -> None:
    """Find the words whose vectors are nearest, by the cosine.

    Example: firth vectors nearest models/glove Stockholm

    Parameters
    ----------
    model
        The folder of a model of whole words.
    words
        Words; lines of stdin if none is given, of which unknown ones are named on stderr, and the exit code is then 1.
    top_k
        How many for each.
    as_json
        Print one JSON object a word.
    """
    from firth.inference.word_table import open_table

    for word in words:
        check_text(word, "WORD")
    table = open_table(model)
    for word in words:
        _print_nearest(word, table.nearest(word, top_k), as_json)
    if words:
        return
    n_words = n_unknown = 0
    for word in lines_from(None):
        n_words += 1
        try:
            found = table.nearest(word, top_k)
        except InputError as error:
            n_unknown += 1
            say(f"stdin, line {n_words}: {error}")
        else:
            _print_nearest(word, found, as_json)
    if not n_words:
        raise InputError("stdin: no words: give them one a line")
    if n_unknown:
        raise FirthError(f"{n_unknown:,} of {counted(n_words, 'word')} without a vector")


def _print_nearest(word: str, found: list["Neighbour"], as_json: bool) -> None:
    from dataclasses import asdict

    if as_json:
        print_json({"word": word, "nearest": [asdict(one) for one in found]})
        return
    print(word)
    print_table([(one.word, f"{one.cosine:.4f}") for one in found] or [("(no other word)", "")])


@vectors.command(sort_key=3)
def analogy(
    model: ModelPath,
    /,
    *,
    questions: Path,
    ignore_case: Flag = False,
    first: First = 0,
    as_json: JsonFlag = False,
) -> None:
    """Answer questions such as: Athens is to Greece as Baghdad is to what?

    Example: firth vectors analogy models/glove --questions questions-words.txt --ignore-case

    Parameters
    ----------
    model
        The folder of a model of whole words.
    questions
        A file of four words a line, with lines such as ": currency" between sections.
    ignore_case
        Take small and capital letters for the same, as word2vec's own test does.
    first
        Know only so many words, the most frequent ones (word2vec's own test: 30000); 0: all.
    as_json
        Print one JSON object.
    """
    from dataclasses import asdict

    from firth.inference.word_table import open_table
    from firth.vectors.scores import analogies, read_questions

    asked = read_questions(questions)
    sections = analogies(open_table(model), asked, fold=ignore_case, first=first)
    if as_json:
        print_json([asdict(section) | {"accuracy": section.accuracy} for section in sections])
        return
    for section in sections:
        share = f"{section.accuracy:7.2%}" if section.known else "      -"
        unknown = section.questions - section.known
        lacking = f", {unknown:,} of {section.questions:,} with unknown words" if unknown else ""
        print(f"  {section.name or 'questions':30}  {share}  {section.right:,} of {section.known:,}{lacking}")


@vectors.command(sort_key=4)
def similarity(
    model: ModelPath,
    /,
    *pairs: Annotated[Path, Parameter(name="PAIRS", required=True)],
    ignore_case: Flag = False,
    as_json: JsonFlag = False,
) -> None:
    """Compare cosines with how alike people find two words (Spearman's correlation).

    Example: firth vectors similarity models/glove wordsim353.tsv simlex999.txt

    Parameters
    ----------
    model
        The folder of a model of whole words.
    pairs
        Files of two words and a number a line, between tabs or blanks.
    ignore_case
        Take small and capital letters for the same.
    as_json
        Print one JSON object a file.
    """
    from firth.inference.word_table import open_table
    from firth.vectors.scores import read_pairs
    from firth.vectors.scores import similarity as score

    read = [(path, read_pairs(path)) for path in pairs]
    table = open_table(model)
    for path, some in read:
        found = score(table, path.name, some, fold=ignore_case)
        if as_json:
            print_json(found)
            continue
        unknown = found.pairs - found.known
        notes = [f"{unknown:,} with unknown words"] * bool(unknown)
        notes += [f"{found.made:,} with a vector made of n-grams"] * bool(found.made)
        more = f" ({', '.join(notes)})" if notes else ""
        print(f"{found.name}: spearman {found.spearman:.4f}, pearson {found.pearson:.4f}, {found.pairs:,} pairs{more}")
