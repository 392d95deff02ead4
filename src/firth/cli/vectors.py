"""``firth vectors``: convert, train, query and evaluate word vectors."""

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from cyclopts import App, Parameter, validators

from firth.cli.shared import (
    Flag,
    JsonFlag,
    Texts,
    Whole,
    check_text,
    counted,
    load_and_say,
    numbered_lines,
    on_interrupt,
    print_json,
    print_next,
    print_table,
    print_warnings,
    text_warnings,
)
from firth.config import from_dict, override
from firth.errors import FirthError, InputError, UsageError
from firth.progress import say

if TYPE_CHECKING:
    from firth.inference.word_table import Neighbour
    from firth.vectors.folder import VectorsReport

Unknown = Literal["one", "shapes", "hashed", "ngrams"]
StandIn = Literal["rarest", "mean", "zero"]
Split = Literal["words", "blanks"]
Several = Annotated[list[str] | None, Parameter(name="--set", show_default=False)]
ModelPath = Annotated[Path, Parameter(name="MODEL")]
First = Annotated[Whole, Parameter(validator=validators.Number(gte=0))]
Count = Annotated[Whole, Parameter(validator=validators.Number(gte=1))]
_NOTHING = "no model was written; run the same command again"

vectors = App(
    name="vectors",
    help="Convert, train, query and evaluate word vectors: word2vec, GloVe, fastText.\n\n"
    "Example: firth vectors nearest models/glove Stockholm",
)


@vectors.command(sort_key=0)
def convert(
    source: Annotated[Path, Parameter(name="SOURCE")],
    /,
    *,
    to: Annotated[Path, Parameter(name=["--out", "--to"])],
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
    """Convert a file of word vectors into a model folder.

    The format is detected automatically: GloVe, word2vec or fastText text, word2vec binary, fastText .bin.

    Example: firth vectors convert glove.6B.100d.txt --out models/glove

    Parameters
    ----------
    source
        The file, also as .gz, .xz, .bz2 or .zst (except fastText's .bin); or a model folder of word vectors, to keep
        fewer words or change the rule for unknown ones.
    to
        Output model folder.
    texts
        Keep only words that occur in these texts; default: all words of the file.
    min_count
        With --texts: minimum word count.
    max_words
        Keep only the first N words; 0: all.
    unknown
        Vector of an unknown word: one shared vector; one per shape (number, capitals, …); a random one by hash; or the
        mean of its n-grams. Default: ngrams if the file has them, else one; a model folder keeps its rule.
    stand_in
        The shared vector: mean of the 100 rarest words, mean of all, or zeros. Default: the file's own <unk>, else
        rarest.
    buckets
        With --unknown hashed: number of vectors; default: that of the model folder, else 1000.
    cased
        Whether text stays cased; default: whether words of the file have capitals.
    split
        Split text at white space and punctuation (words), or at white space only (blanks), for tokenized text.
        Default: words, or that of the model folder.
    glove_vocab
        GloVe's vocabulary file, which its binary vectors need.
    as_json
        Print the report as one JSON object.
    """
    from firth.vectors.folder import VectorOptions, convert_vectors

    reading = VectorOptions(
        glove_vocab=glove_vocab,
        texts=tuple(texts or ()),
        min_count=min_count,
        max_words=max_words,
        unknown=unknown,
        stand_in=stand_in,
        lowercase=None if cased is None else not cased,
        split=split,
        n_buckets=buckets,
    )
    with on_interrupt(_NOTHING):
        _report(convert_vectors(source, to, reading), as_json)


@vectors.command(sort_key=1)
def train(
    *texts: Texts,
    out: Annotated[Path, Parameter(name=["--out", "--to"])],
    kind: Literal["word2vec", "fasttext", "glove"] = "word2vec",
    algorithm: Annotated[Literal["skip-gram", "cbow"] | None, Parameter(show_default=False)] = None,
    width: Count = 100,
    window: Annotated[Count | None, Parameter(show_default=False)] = None,
    epochs: Annotated[Count | None, Parameter(show_default=False)] = None,
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
    """Train word vectors on text: word2vec or fastText with gensim, or GloVe.

    Example: firth vectors train wiki/*.txt.xz --kind fasttext --out runs/vectors

    Parameters
    ----------
    texts
        Files, folders or patterns: plain text (blank lines between documents), JSONL, Parquet, Wikipedia dumps (.xml);
        also packed as .gz, .xz, .bz2 or .zst.
    out
        Output model folder.
    kind
        fasttext adds character n-grams, which give unknown words a vector; glove fits co-occurrence counts.
    algorithm
        For word2vec and fasttext. skip-gram (default): a word predicts its context; cbow: the reverse.
    width
        Vector dimension.
    window
        Maximum context words on each side; default 5, for glove 10.
    epochs
        Passes over the text, default 5; for glove over the counts, default 50.
    min_count
        Minimum word count.
    lowercase
        Lower-case the text.
    workers
        Threads of gensim; 0: all CPU cores. Only 1 is deterministic; glove always is.
    unknown
        Vector of an unknown word, as for firth vectors convert.
    stand_in
        The shared vector of unknown words, as for firth vectors convert.
    buckets
        With --unknown hashed: number of vectors (default 1000).
    split
        Split text at white space and punctuation (words), or at white space only (blanks), for tokenized text.
    settings
        Another option, such as --set negative=10: negative, sample, learning_rate, seed, n_buckets, shortest_ngram,
        longest_ngram; for glove learning_rate, x_max, exponent, seed.
    as_json
        Print the report as one JSON object.
    """
    from firth.vectors.folder import VectorOptions
    from firth.vectors.train import VectorTraining, train_vectors

    given = {"window": window, "epochs": epochs, "algorithm": algorithm}
    plain: dict[str, Any] = {"width": width, "min_count": min_count, "lowercase": lowercase}
    plain |= {name: value for name, value in given.items() if value is not None}
    reading = VectorOptions(unknown=unknown, stand_in=stand_in, n_buckets=buckets, split=split)
    if kind == "glove":
        if algorithm is not None or workers:
            raise UsageError(
                "--algorithm and --workers are for word2vec and fasttext: leave them out with --kind glove"
            )
        from firth.vectors.glove import GloveTraining, train_glove

        glove = from_dict(GloveTraining, override(plain, settings or []), "--set")
        with on_interrupt(_NOTHING):
            _report(train_glove(texts, out, glove, reading), as_json)
        return
    plain |= {"kind": kind, "workers": workers}
    training = from_dict(VectorTraining, override(plain, settings or []), "--set")
    with on_interrupt(_NOTHING):
        _report(train_vectors(texts, out, training, reading), as_json)


def _report(report: "VectorsReport", as_json: bool) -> None:
    if as_json:
        print_json(report)
        return
    unknown = {
        "one": "one vector for all",
        "shapes": f"one of {report.n_unknown} vectors, by its shape",
        "hashed": f"one of {report.n_unknown:,} vectors, by its hash",
        "ngrams": f"the mean of its n-grams, of {report.n_unknown:,} vectors",
    }[report.unknown]
    print(f"{report.out}: {counted(report.words, 'word')}, {report.width} dimensions")
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
        print(f"  warning: {counted(report.repeated, 'word')} occurred twice: the first vector is kept")
    if report.not_utf8:
        print(f"  warning: {counted(report.not_utf8, 'word')} not UTF-8, read with U+FFFD in the place of what is not")
    if report.never_read:
        word = counted(report.never_read, "word")
        print(f"  warning: {word} of a form that text is never read as, such as {report.first_never_read!r}")
    print_warnings(report.bad_bytes, report.bad_places, report.cut_lines, report.cut_documents)
    print_next("firth", "vectors", "nearest", report.out, "WORD")


@vectors.command(sort_key=2)
def nearest(
    model: ModelPath,
    /,
    *words: Annotated[str, Parameter(name="WORD")],
    top_k: Count = 10,
    in_context: str | None = None,
    texts: Annotated[list[str] | None, Parameter(name="--texts", consume_multiple=True)] = None,
    layer: Annotated[Whole, Parameter(show_default=False)] = -1,
    same_word: Flag = False,
    as_json: JsonFlag = False,
) -> None:
    """Find the nearest words by cosine similarity, or the nearest occurrences to a word in its sentence.

    Example: firth vectors nearest runs/a bank --in-context "He sat on the bank of the river." --texts wiki.txt

    Parameters
    ----------
    model
        Model folder of word vectors; with --in-context any model.
    words
        Words; lines of stdin if none is given. Unknown ones are named on stderr, with exit code 1.
    top_k
        Neighbours per word.
    in_context
        A sentence with the word: compare vectors in context with those of the words in --texts.
    texts
        With --in-context: files, folders or patterns with the sentences to search.
    layer
        With --in-context: layer, 0 is the embedding output, -1 the top (default).
    same_word
        With --in-context: only occurrences of the same word.
    as_json
        Print one JSON object per word.
    """
    from firth.inference.word_table import open_table

    for word in words:
        check_text(word, "WORD")
    if in_context is not None:
        _nearest_in_context(model, words, in_context, texts, layer, top_k, same_word, as_json)
        return
    if texts or layer != -1 or same_word:
        raise UsageError(
            "--texts, --layer and --same-word are for --in-context SENTENCE: give it too, or leave them out"
        )
    table = open_table(model)
    n_words = n_unknown = 0
    for number, word in enumerate(words, start=1) if words else numbered_lines(None):
        n_words += 1
        try:
            found = table.nearest(word, top_k)
        except InputError as error:
            if len(words) == 1:
                raise FirthError(str(error)) from None
            n_unknown += 1
            say(str(error) if words else f"stdin, line {number}: {error}")
        else:
            _print_nearest(word, found, as_json)
    if not n_words:
        raise InputError("stdin: no words: give them one a line")
    if n_unknown:
        raise FirthError(f"{n_unknown:,} of {counted(n_words, 'word')} without a vector")


def _nearest_in_context(
    model: Path,
    words: tuple[str, ...],
    sentence: str,
    texts: list[str] | None,
    layer: int,
    top_k: int,
    same_word: bool,
    as_json: bool,
) -> None:
    from dataclasses import asdict

    from firth.progress import Progress
    from firth.text.corpus import CorpusReader
    from firth.vectors.occurrences import nearest_in_context, sentences_of

    if len(words) != 1:
        raise UsageError(f"--in-context takes one WORD of its sentence, got {len(words)}")
    if not texts:
        raise UsageError("--texts is missing: name the files whose words are compared, such as --texts wiki.txt")
    check_text(sentence, "--in-context")
    reader = CorpusReader(texts)
    loaded = load_and_say(model, "float32")
    with Progress("reading", None, "sentences") as progress:

        def counted_sentences() -> Iterator[str]:
            for one in sentences_of(reader):
                progress.advance(1)
                yield one

        found = nearest_in_context(
            loaded, words[0], sentence, counted_sentences(), top_k=top_k, layer=layer, same_word=same_word
        )
    report = reader.report
    # On stderr, not among the results, which other programs read.
    for warning in text_warnings(report.bad_bytes, report.bad_places, report.cut_lines, report.cut_documents):
        say(warning)
    if as_json:
        print_json({"word": words[0], "sentence": sentence, "nearest": [asdict(one) for one in found]})
        return
    for one in found:
        print(f"  {one.cosine:.4f}  {one.sentence[: one.start]}[{one.word}]{one.sentence[one.end :]}")
    if not found:
        print("  (no other occurrence)")


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
    *words: Annotated[str, Parameter(name="WORD")],
    questions: Path | None = None,
    top_k: Annotated[Count | None, Parameter(show_default=False)] = None,
    ignore_case: Flag = False,
    first: First = 0,
    as_json: JsonFlag = False,
) -> None:
    """Answer an analogy, A is to B as C is to what, or evaluate on a file of such questions.

    Example: firth vectors analogy models/glove Stockholm Sweden Cairo

    Parameters
    ----------
    model
        Model folder of word vectors.
    words
        Three words A B C: the words nearest to B - A + C are printed. Or --questions.
    questions
        File with four words per line, and lines such as ": currency" between sections.
    top_k
        Answers to three words (default 5).
    ignore_case
        Ignore case, as word2vec's own evaluation does.
    first
        Use only the N most frequent words (word2vec's own evaluation: 30000); 0: all.
    as_json
        Print one JSON object.
    """
    from dataclasses import asdict

    from firth.inference.word_table import open_table
    from firth.vectors.scores import analogies, read_questions

    if (questions is None) == (not words):
        raise UsageError("give three words, such as Stockholm Sweden Cairo, or --questions FILE")
    if questions is None:
        _print_analogy(model, words, top_k or 5, ignore_case or bool(first), as_json)
        return
    if top_k is not None:
        raise UsageError("--top-k is for three words: leave it out with --questions")
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


def _print_analogy(model: Path, words: tuple[str, ...], top_k: int, other: bool, as_json: bool) -> None:
    from dataclasses import asdict

    from firth.inference.word_table import open_table

    if len(words) != 3:
        raise UsageError(f"an analogy has three words, A is to B as C is to what; got {len(words)}")
    if other:
        raise UsageError("--ignore-case and --first are for --questions: leave them out")
    for word in words:
        check_text(word, "WORD")
    found = open_table(model).analogy(*words, top_k=top_k)
    if as_json:
        print_json({"words": words, "answers": [asdict(one) for one in found]})
        return
    a, b, c = words
    print(f"{a} : {b} = {c} : ?")
    print_table([(one.word, f"{one.cosine:.4f}") for one in found] or [("(no other word)", "")])


@vectors.command(sort_key=4)
def similarity(
    model: ModelPath,
    /,
    *pairs: Annotated[Path, Parameter(name="PAIRS", required=True)],
    ignore_case: Flag = False,
    as_json: JsonFlag = False,
) -> None:
    """Evaluate on word similarity: Spearman correlation of cosine and human judgement.

    Example: firth vectors similarity models/glove wordsim353.tsv simlex999.txt

    Parameters
    ----------
    model
        Model folder of word vectors.
    pairs
        Files with two words and a score per line, separated by tabs or spaces.
    ignore_case
        Ignore case.
    as_json
        Print one JSON object per file.
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
        read_of = f"{found.known:,} of " if found.known < found.pairs else ""
        notes = ["the others have unknown words"] * bool(read_of)
        notes += [f"{found.made:,} with a vector made of n-grams"] * bool(found.made)
        more = f" ({', '.join(notes)})" if notes else ""
        scores = f"spearman {found.spearman:.4f}, pearson {found.pearson:.4f}"
        print(f"{found.name}: {scores}, {read_of}{found.pairs:,} pairs{more}")
