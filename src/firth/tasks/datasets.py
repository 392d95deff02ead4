"""The table of published data sets: files, reader and metrics of each.

File names and columns are those of the publication; common copies with simple names (``train.tsv``) are tried
next. Nothing in this module imports torch.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Literal, NamedTuple

from firth.tasks.readers.choices import read_dream, read_swag
from firth.tasks.readers.facts import VERDICTS, read_facts
from firth.tasks.readers.files import Problems
from firth.tasks.readers.published import AG_NEWS, read_ag_news, read_entities, read_published_arc, read_trec
from firth.tasks.readers.questions import read_squad
from firth.tasks.readers.tagging import read_conll, read_conllu, read_klue_ner
from firth.tasks.readers.texts import Columns, TextFormat, TextKind, TextRule, read_texts
from firth.tasks.readers.trees import SENTIMENTS, read_sentiment_trees
from firth.text.records import Record

DataKind = Literal["classify", "multilabel", "regress", "tag", "answer", "choose"]
Read = Callable[[Path, Problems], Iterable[Record]]
# Tried in order, plain and compressed; * as in a shell; a tuple instead of a name means all of its files together.
Names = tuple[str | tuple[str, ...], ...]


class DatasetSource(NamedTuple):
    """The files of one split, and their reader."""

    names: Names
    read: Read


@dataclass(frozen=True, kw_only=True, slots=True)
class Dataset:
    """One published data set.

    ``splits``: train and dev at least (dev may fall back to the test file where no other is published), except for
    test-only sets. ``labels``: in the published order; None takes those of the training examples, sorted.
    ``metrics``: the first one selects models. ``positive_from``: F1 counts a text as positive from this value on.
    ``unit``: what a tag belongs to.
    """

    kind: DataKind
    splits: Mapping[str, DatasetSource]
    metrics: tuple[str, ...]
    labels: tuple[str, ...] | None = None
    positive_from: float | None = None
    unit: Literal["word", "character"] = "word"
    note: str = ""


# -- readers of the table's files -------------------------------------------------------------------


def _texts(
    text: int | str,
    second: int | str | None = None,
    label: int | str | None = None,
    *,
    id: int | str | None = None,
    group: int | str | None = None,
    kind: TextKind = "classify",
    left_out: tuple[TextRule, ...] = (),
    renamed: tuple[tuple[str, str], ...] = (),
    only: tuple[int | str, str] | None = None,
) -> Read:
    """A reader of tables: columns by name with a header, by number without; without a label it reads test rows."""
    layout = TextFormat(
        columns=Columns(text=text, second=second, label=label, id=id, group=group),
        kind=kind,
        header=isinstance(text, str),
        left_out=left_out,
        renamed=renamed,
        only=only,
    )
    return partial(read_texts, layout=layout, labelled=label is not None)


def _splits(read: Read, train: Names, dev: Names, test: Names = ()) -> dict[str, DatasetSource]:
    splits = {"train": DatasetSource(train, read), "dev": DatasetSource(dev, read), "test": DatasetSource(test, read)}
    return {split: source for split, source in splits.items() if source.names}


def _glue(folder: str, read: Read, test: Read) -> dict[str, DatasetSource]:
    """The three files of a GLUE task, in its own folder or the parent."""

    def names(file: str) -> Names:
        return (file, f"{folder}/{file}")

    return {
        "train": DatasetSource(names("train.tsv"), read),
        "dev": DatasetSource(names("dev.tsv"), read),
        "test": DatasetSource(names("test.tsv"), test),
    }


def _pairs(
    folder: str,
    first: str,
    second: str,
    label: str,
    *,
    id: str = "index",
    kind: TextKind = "classify",
    left_out: tuple[TextRule, ...] = (),
) -> dict[str, DatasetSource]:
    """The files of a GLUE task of pairs whose test file has the columns of the others except the labels."""
    read = _texts(first, second, label, id=id, kind=kind, left_out=left_out)
    return _glue(folder, read, _texts(first, second, id=id))


def _diagnostic(file: str) -> Names:
    return (file, f"diagnostic/{file}", f"AX/{file}")


def _mnli() -> dict[str, DatasetSource]:
    read = _texts("sentence1", "sentence2", "gold_label", id="index", group="promptID")
    test = _texts("sentence1", "sentence2", id="index")
    files = {
        "train": ("train.tsv", read),
        "dev": ("dev_matched.tsv", read),
        "dev_mismatched": ("dev_mismatched.tsv", read),
        "test": ("test_matched.tsv", test),
        "test_mismatched": ("test_mismatched.tsv", test),
    }
    return {split: DatasetSource((name, f"MNLI/{name}"), reader) for split, (name, reader) in files.items()}


def _xnli(language: str) -> Dataset:
    """One language of XNLI: machine-translated training pairs, human-translated development and test pairs."""
    renamed = (("contradictory", "contradiction"),)
    pairs = _texts("sentence1", "sentence2", "gold_label", id="pairID", group="promptID", only=("language", language))
    train = f"multinli.train.{language}.tsv"
    return Dataset(
        kind="classify",
        splits={
            "train": DatasetSource((train, f"multinli/{train}"), _texts("premise", "hypo", "label", renamed=renamed)),
            "dev": DatasetSource(("xnli.dev.tsv",), pairs),
            "test": DatasetSource(("xnli.test.tsv",), pairs),
        },
        metrics=("accuracy",),
        labels=_NLI,
        note=f"reads the rows in {language!r} and skips other languages",
    )


# -- the table ---------------------------------------------------------------------------------------------

_BINARY = ("0", "1")
_NLI = ("contradiction", "entailment", "neutral")  # the order of google-research/bert
_RTE = ("entailment", "not_entailment")
_UPOS = (
    "ADJ",
    "ADP",
    "ADV",
    "AUX",
    "CCONJ",
    "DET",
    "INTJ",
    "NOUN",
    "NUM",
    "PART",
    "PRON",
    "PROPN",
    "PUNCT",
    "SCONJ",
    "SYM",
    "VERB",
    "X",
)
_XNLI_LANGUAGES = ("ar", "bg", "de", "el", "en", "es", "fr", "hi", "ru", "sw", "th", "tr", "ur", "vi", "zh")


def _bio(*types: str) -> tuple[str, ...]:
    return ("O", *(f"{prefix}-{name}" for name in types for prefix in "BI"))


_SNLI = _texts("sentence1", "sentence2", "gold_label", id="pairID", group="captionID", left_out=("no gold label",))
_SQUAD1 = partial(read_squad, unanswerable=False)
_CONLL = partial(read_entities, read_conll)
_KLUE_NER = partial(read_entities, read_klue_ner)

DATASETS: dict[str, Dataset] = {
    "glue/cola": Dataset(
        kind="classify",
        splits=_glue("CoLA", _texts(3, label=1), _texts("sentence", id="index")),
        metrics=("mcc", "accuracy"),
        labels=_BINARY,
    ),
    "glue/sst2": Dataset(
        kind="classify",
        splits=_glue("SST-2", _texts("sentence", label="label"), _texts("sentence", id="index")),
        metrics=("accuracy",),
        labels=_BINARY,
    ),
    "glue/mrpc": Dataset(
        kind="classify",
        splits=_glue(
            "MRPC",
            _texts("#1 String", "#2 String", "Quality"),
            _texts("#1 String", "#2 String", id="index"),
        ),
        metrics=("f1", "accuracy"),
        labels=_BINARY,
    ),
    "glue/qqp": Dataset(
        kind="classify",
        splits=_pairs("QQP", "question1", "question2", "is_duplicate", id="id", left_out=("short row", "empty text")),
        metrics=("f1", "accuracy"),
        labels=_BINARY,
        note="rows with missing columns or questions are skipped, as in the GLUE baselines",
    ),
    "glue/stsb": Dataset(
        kind="regress",
        splits=_pairs("STS-B", "sentence1", "sentence2", "score", kind="regress"),
        metrics=("pearson", "spearman"),
    ),
    "glue/mnli": Dataset(
        kind="classify",
        splits=_mnli(),
        metrics=("accuracy",),
        labels=_NLI,
        note="dev is the matched half; dev_mismatched is a separate split",
    ),
    "glue/qnli": Dataset(
        kind="classify",
        splits=_pairs("QNLI", "question", "sentence", "label"),
        metrics=("accuracy",),
        labels=_RTE,
    ),
    "glue/rte": Dataset(
        kind="classify",
        splits=_pairs("RTE", "sentence1", "sentence2", "label"),
        metrics=("accuracy",),
        labels=_RTE,
    ),
    "glue/wnli": Dataset(
        kind="classify",
        splits=_pairs("WNLI", "sentence1", "sentence2", "label"),
        metrics=("accuracy",),
        labels=_BINARY,
    ),
    "glue/ax": Dataset(
        kind="classify",
        splits={
            "dev": DatasetSource(_diagnostic("diagnostic-full.tsv"), _texts("Premise", "Hypothesis", "Label")),
            "test": DatasetSource(_diagnostic("diagnostic.tsv"), _texts("sentence1", "sentence2", id="index")),
        },
        metrics=("mcc", "accuracy"),
        labels=_NLI,
        note="test only, for models of glue/mnli; dev is the labelled file",
    ),
    "snli": Dataset(
        kind="classify",
        splits=_splits(
            _SNLI,
            ("snli_1.0_train.txt", "snli_1.0_train.jsonl"),
            ("snli_1.0_dev.txt", "snli_1.0_dev.jsonl"),
            ("snli_1.0_test.txt", "snli_1.0_test.jsonl"),
        ),
        metrics=("accuracy",),
        labels=_NLI,
        note='pairs whose annotators did not agree (gold label "-") are skipped, as published',
    ),
    "xnli": _xnli("en"),
    **{f"xnli/{language}": _xnli(language) for language in _XNLI_LANGUAGES},
    "squad1": Dataset(
        kind="answer",
        splits=_splits(_SQUAD1, ("train-v1.1.json", "train.json"), ("dev-v1.1.json", "dev.json")),
        metrics=("squad_f1", "exact_match"),
    ),
    "squad2": Dataset(
        kind="answer",
        splits=_splits(read_squad, ("train-v2.0.json", "train.json"), ("dev-v2.0.json", "dev.json")),
        metrics=("squad_f1", "exact_match"),
        note="some questions have no answer",
    ),
    "korquad1": Dataset(
        kind="answer",
        splits=_splits(_SQUAD1, ("KorQuAD_v1.0_train.json", "train.json"), ("KorQuAD_v1.0_dev.json", "dev.json")),
        metrics=("char_f1", "char_exact_match"),
        note="character-level F1, as in the official scorer",
    ),
    "swag": Dataset(
        kind="choose",
        splits={
            **_splits(read_swag, ("train.csv",), ("val.csv", "dev.csv")),
            "test": DatasetSource(("test.csv",), partial(read_swag, labelled=False)),
        },
        metrics=("accuracy",),
    ),
    "dream": Dataset(
        kind="choose",
        splits=_splits(read_dream, ("train.json",), ("dev.json",), ("test.json",)),
        metrics=("accuracy",),
    ),
    "arc": Dataset(
        kind="choose",
        splits=_splits(
            read_published_arc,
            ("ARC-Challenge-Train.jsonl", "ARC-Easy-Train.jsonl", "train.jsonl", "train.csv"),
            ("ARC-Challenge-Dev.jsonl", "ARC-Easy-Dev.jsonl", "dev.jsonl", "dev.csv"),
            ("ARC-Challenge-Test.jsonl", "ARC-Easy-Test.jsonl", "test.jsonl", "test.csv"),
        ),
        metrics=("accuracy",),
        note="challenge or easy, depending on the folder",
    ),
    "conll2003": Dataset(
        kind="tag",
        splits=_splits(
            _CONLL, ("eng.train", "train.txt"), ("eng.testa", "valid.txt", "dev.txt"), ("eng.testb", "test.txt")
        ),
        metrics=("entity_f1", "tag_accuracy"),
        labels=_bio("PER", "ORG", "LOC", "MISC"),
        note="published in IOB1, read as BIO",
    ),
    "ud-pos": Dataset(
        kind="tag",
        splits=_splits(
            read_conllu,
            ("*-ud-train.conllu", "train.conllu"),
            ("*-ud-dev.conllu", "dev.conllu"),
            ("*-ud-test.conllu", "test.conllu"),
        ),
        metrics=("tag_accuracy",),
        labels=_UPOS,
        note="universal part-of-speech tags of any Universal Dependencies 2 treebank",
    ),
    "klue/ner": Dataset(
        kind="tag",
        splits=_splits(_KLUE_NER, ("klue-ner-v1.1_train.tsv", "train.tsv"), ("klue-ner-v1.1_dev.tsv", "dev.tsv")),
        metrics=("entity_f1", "char_f1"),
        labels=_bio("PS", "LC", "OG", "DT", "TI", "QT"),
        unit="character",
        note="scored on non-space characters, as in the official baseline",
    ),
    "klue/nli": Dataset(
        kind="classify",
        splits=_splits(
            _texts("premise", "hypothesis", "gold_label", id="guid"),
            ("klue-nli-v1.1_train.json", "train.json"),
            ("klue-nli-v1.1_dev.json", "dev.json"),
        ),
        metrics=("accuracy",),
        labels=("entailment", "contradiction", "neutral"),
    ),
    "klue/sts": Dataset(
        kind="regress",
        splits=_splits(
            _texts("sentence1", "sentence2", "labels.real-label", id="guid", kind="regress"),
            ("klue-sts-v1.1_train.json", "train.json"),
            ("klue-sts-v1.1_dev.json", "dev.json"),
        ),
        metrics=("pearson", "f1"),
        positive_from=3.0,
        note="the gold score is real-label, as in the official baseline; F1 counts pairs from 3 on as positive",
    ),
    "klue/tc": Dataset(
        kind="classify",
        splits=_splits(
            _texts("title", label="label", id="guid"),
            ("ynat-v1.1_train.json", "train.json"),
            ("ynat-v1.1_dev.json", "dev.json"),
        ),
        metrics=("macro_f1", "accuracy"),
        labels=("정치", "경제", "사회", "생활문화", "세계", "IT과학", "스포츠"),
    ),
    "kornli": Dataset(
        kind="classify",
        splits=_splits(
            _texts("sentence1", "sentence2", "gold_label"),
            (("multinli.train.ko.tsv", "snli_1.0_train.ko.tsv"), "train.tsv"),
            ("xnli.dev.ko.tsv", "dev.tsv"),
            ("xnli.test.ko.tsv", "test.tsv"),
        ),
        metrics=("accuracy",),
        labels=_NLI,
    ),
    "korsts": Dataset(
        kind="regress",
        splits=_splits(
            _texts("sentence1", "sentence2", "score", kind="regress"),
            ("sts-train.tsv", "train.tsv"),
            ("sts-dev.tsv", "dev.tsv"),
            ("sts-test.tsv", "test.tsv"),
        ),
        metrics=("spearman", "pearson"),
    ),
    "nsmc": Dataset(
        kind="classify",
        splits=_splits(
            _texts("document", label="label", id="id", left_out=("empty text",)),
            ("ratings_train.txt",),
            ("ratings_dev.txt", "ratings_test.txt"),
            ("ratings_test.txt",),
        ),
        metrics=("accuracy",),
        labels=_BINARY,
        note="no dev file is published: the test file, unless there is ratings_dev.txt; rows without text are left out",
    ),
    "trec": Dataset(
        kind="classify",
        splits=_splits(
            partial(read_trec, fine=False),
            ("train_5500.label", "train.txt"),
            ("dev.txt", "TREC_10.label", "test.txt"),
            ("TREC_10.label", "test.txt"),
        ),
        metrics=("accuracy",),
        labels=("ABBR", "DESC", "ENTY", "HUM", "LOC", "NUM"),
        note="no dev file is published: the test file, unless there is dev.txt",
    ),
    "trec/fine": Dataset(
        kind="classify",
        splits=_splits(
            partial(read_trec, fine=True),
            ("train_5500.label", "train.txt"),
            ("dev.txt", "TREC_10.label", "test.txt"),
            ("TREC_10.label", "test.txt"),
        ),
        metrics=("accuracy",),
        note="no dev file is published: the test file, unless there is dev.txt",
    ),
    "ag-news": Dataset(
        kind="classify",
        splits=_splits(
            read_ag_news, ("train.csv", "train.tsv"), ("dev.csv", "dev.tsv", "test.csv"), ("test.csv", "test.tsv")
        ),
        metrics=("accuracy",),
        labels=AG_NEWS,
        note="no dev file is published: the test file, unless there is dev.csv or dev.tsv",
    ),
    "sms-spam": Dataset(
        kind="classify",
        splits=_splits(_texts(1, label=0), ("SMSSpamCollection", "train.tsv"), ("dev.tsv",)),
        metrics=("macro_f1", "accuracy"),
        labels=("ham", "spam"),
        note="published as one file without splits",
    ),
    "sst5": Dataset(
        kind="classify",
        splits=_splits(
            read_sentiment_trees,
            ("train.txt", "trees/train.txt"),
            ("dev.txt", "trees/dev.txt"),
            ("test.txt", "trees/test.txt"),
        ),
        metrics=("accuracy",),
        labels=SENTIMENTS,
        note="whole sentences of the Stanford Sentiment Treebank's trees, with five labels",
    ),
    "imdb": Dataset(
        kind="classify",
        splits=_splits(_texts(0, label=1), ("train.tsv",), ("dev.tsv", "test.tsv"), ("test.tsv",)),
        metrics=("accuracy",),
        labels=_BINARY,
        note="reviews of Maas et al. 2011 as a table of text and label, 1 is positive",
    ),
    "fact-checking": Dataset(
        kind="classify",
        splits={
            "train": DatasetSource(("train.jsonl",), read_facts),
            "dev": DatasetSource(("dev.jsonl",), read_facts),
            "test": DatasetSource(("test.jsonl",), partial(read_facts, labelled=False)),
        },
        metrics=("accuracy", "macro_f1"),
        labels=VERDICTS,
        note="JSON lines of claim, evidence (a text or a list of texts) and FEVER's label",
    ),
    "movie-reviews": Dataset(
        kind="classify",
        splits=_splits(_texts("text", label="label", id="id"), ("train.tsv",), ("dev.tsv",)),
        metrics=("accuracy",),
        labels=("neg", "pos"),
        note="polarity v2.0 as a table of label, id and text",
    ),
}
