"""``firth probe --all``: which layer carries tags, entities, sentence length and word content; with control tasks.

For each layer a logistic regression learns each task from the frozen vectors; those of words and sentences are the mean
of their tokens. Sources: Conneau et al. 2018 (sentence length, word content), Hewitt and Liang 2019 (control tasks).
"""

import dataclasses
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
from jaxtyping import Bool, Float, Int

from firth.cluster.calls import Call, Calls
from firth.cluster.connection import Cluster, connect_to
from firth.config import COUNT, check_bounds, option
from firth.data.hashing import below, draw, seed_of
from firth.errors import ConfigError, FirthError, InputError
from firth.files import check_new, new_folder, write_json
from firth.finetuning.labelled import read_labelled
from firth.finetuning.layer_probes_report import write_probe_report
from firth.finetuning.recipe import LabelledConfig
from firth.inference.model import Model, load_model
from firth.progress import Progress, say
from firth.tasks.kinds import kind_of_task
from firth.tasks.reading import splits_in
from firth.tasks.tag_schemes import OUTSIDE
from firth.text.records import Tagged

# Conneau et al. 2018 use six bins of length.
_BINS = 6
# Words of the word content task: fewer than the published 1,000, for a thousand sentences.
_CONTENT_WORDS = 30
_RESAMPLES = 1000
_INTERVAL = (2.5, 97.5)


@dataclass(frozen=True, kw_only=True, slots=True)
class LayerProbing:
    """How layers are probed."""

    sentences: int = option(1000, "training sentences of each data set, chosen by hash", COUNT)
    test_sentences: int = option(500, "test sentences of each data set", COUNT)
    words: int = option(5000, "words of a task at most; as many again in the test", COUNT)
    seed: int = option(0, "of all that is chosen, of control labels and of the resamples")

    def __post_init__(self) -> None:
        check_bounds(self)


@dataclass(frozen=True, slots=True)
class Examples:
    """Labelled vectors of one split, by layer. ``types``: the word of each, for control tasks; ``sentences``: the
    sentence of each, for resampling."""

    layers: Float[np.ndarray, "L n H"]
    labels: np.ndarray
    types: list[str]
    sentences: Int[np.ndarray, " n"]


@dataclass(frozen=True, slots=True)
class Probed:
    """A task's results by layer: accuracy with its interval, and that of the control task (None for sentences).

    ``majority``: accuracy of the commonest training label. ``best``: the best layer and its interval.
    """

    task: str
    n_train: int
    n_test: int
    n_labels: int
    majority: float
    accuracy: list[float]
    interval: list[list[float]]
    control: list[float] | None
    best: int
    best_interval: list[float]


def probe_layers(
    models: Sequence[tuple[str, Model]],
    data: Sequence[tuple[str, Path]],
    out: Path,
    options: LayerProbing,
    *,
    on: str = "",
    tell: Callable[[str], None] = say,
) -> dict[str, Any]:
    """Probe every layer of models, by name, on data sets of tags, given as (name, folder), in the new folder ``out``.

    A data set of entities is probed for the entity type of words in an entity, any other for all tags. Sentence length
    and word content use the sentences of the first. ``on``: a Ray cluster, as ``connect`` reads it, whose nodes probe
    one model each and load it by its name. Returns the contents of ``out/probe.json``. ConfigError for a task that has
    no tags, for layers of different hidden sizes, and for two models with the same name.
    """
    check_new(out)
    if not data:
        raise ConfigError("--tags is missing: name a data set and its folder, such as --tags ud-pos=ud-english-ewt/")
    for name, model in models:
        if len(set(model.loaded.objective.encoder.widths)) > 1:
            raise ConfigError(f"{name}: its layers differ in hidden size, so their scores would not compare")
        if [other for other, _ in models].count(name) > 1:
            raise ConfigError(f"{name} is given twice: give each model once")
    # Results are by name: equal names of data sets are distinguished by their folders.
    kinds = [task for task, _ in data]
    names = [task if kinds.count(task) == 1 else f"{task} ({folder.name})" for task, folder in data]
    for name in names:
        if names.count(name) > 1:
            raise ConfigError(f"--tags {name} is given twice: give each data set once, in folders of different names")
    read = [(name, *_records(task, folder, options)) for name, (task, folder) in zip(names, data, strict=True)]
    for task, train, test in read:
        tell(f"{task}: {len(train):,} training and {len(test):,} test sentences")
    with connect_to(on, out, tell) as cluster:
        if cluster is None:
            found = [_probe_model(name, model, read, options) for name, model in models]
        else:
            found = _probe_on(cluster, [name for name, _ in models], names, data, out, options, tell)
    result: dict[str, Any] = {"models": found}
    with new_folder(out) as folder:
        write_json(folder / "probe.json", result)
        try:
            write_probe_report(folder, result["models"])
        except FirthError as error:
            tell(f"no report.html: {error}")
    return result


def _probe_on(
    cluster: Cluster,
    models: Sequence[str],
    names: Sequence[str],
    data: Sequence[tuple[str, Path]],
    out: Path,
    options: LayerProbing,
    tell: Callable[[str], None],
) -> list[dict[str, Any]]:
    """Probe each model as a task of a cluster; the results are in the order of the models."""
    folders = [(name, task, str(folder)) for name, (task, folder) in zip(names, data, strict=True)]
    calls = {
        name: Call(
            function=f"{__name__}:{probe_on_node.__name__}",
            arguments={"model": name, "data": folders, "options": dataclasses.asdict(options)},
            folder=out,
            gpus=int(cluster.gpus > 0),
        )
        for name in models
    }
    found = dict[str, dict[str, Any]]()
    for name, result in Calls(cluster, tell).values(calls):
        found[name] = result
        tell(f"[{len(found)}/{len(models)}] {name}")
    return [found[name] for name in models]


def probe_on_node(*, model: str, data: Sequence[tuple[str, str, str]], options: dict[str, Any]) -> dict[str, Any]:
    """Probe one model on a cluster node."""
    given = LayerProbing(**options)
    read = [(name, *_records(task, Path(folder), given)) for name, task, folder in data]
    return _probe_model(model, load_model(model), read, given)


def _probe_model(
    name: str, model: Model, data: Sequence[tuple[str, list[Tagged], list[Tagged]]], options: LayerProbing
) -> dict[str, Any]:
    """One model's results: its name, its number of layers, its tasks, and how their best layers differ."""
    tasks: list[tuple[str, Examples, Examples]] = []
    for number, (task, train, test) in enumerate(data):
        some = [_vectors(model, records) for records in (train, test)]
        entities = any(tag.startswith(("B-", "I-")) for record in train for tag in record.tags or ())
        examples = [
            _word_examples(records, words, entities, options)
            for records, words in zip((train, test), some, strict=True)
        ]
        tasks.append((f"{task} (type of entity)" if entities else task, examples[0], examples[1]))
        if not number:
            tasks += _sentence_tasks(train, test, *some)
    probed: list[Probed] = []
    resampled: dict[str, np.ndarray] = {}
    n_layers = len(model.loaded.objective.encoder.widths)
    with Progress(f"probing {name}", len(tasks) * n_layers, "layers") as progress:
        for task, train_examples, test_examples in tasks:
            one, best = _probe(task, train_examples, test_examples, options, progress)
            probed.append(one)
            resampled[task] = best
    found = [_plain(one) for one in probed]
    return {"model": name, "layers": n_layers - 1, "tasks": found, "differences": _differences(resampled)}


def _records(task: str, folder: Path, options: LayerProbing) -> tuple[list[Tagged], list[Tagged]]:
    if kind_of_task(task) != "tag" or task == "tag":
        raise ConfigError(f"--tags {task}: expected a data set of tags, such as ud-pos, conll2003 or klue/ner")
    # Without a dev file some of the training sentences are held out.
    choose_on: Literal["dev", "held-out"] = "dev" if "dev" in splits_in(task, folder) else "held-out"
    config = LabelledConfig(folder=str(folder), limit=options.sentences, limit_seed=options.seed, choose_on=choose_on)
    read = read_labelled(task, config, {})
    test = read.held
    keys = draw(seed_of("probe", options.seed), np.arange(len(test)))
    chosen = np.sort(np.argsort(keys, kind="stable")[: options.test_sentences])
    return read.train, [test[i] for i in chosen.tolist()]


Words = list[Float[np.ndarray, "L W H"]]


def _vectors(model: Model, records: Sequence[Tagged]) -> Words:
    """Each sentence's word vectors in all layers; a word without a token of its own is NaN."""
    found: Words = []
    for record, vectors in zip(records, model.vectors_stream(r.text for r in records), strict=True):
        layers = vectors.layers
        starts = np.array([token.start for token in vectors.tokens], np.int64)
        ends = np.array([token.end for token in vectors.tokens], np.int64)
        words = np.full((len(layers), len(record.spans), layers.shape[2]), np.nan, np.float32)
        for number, (start, end) in enumerate(record.spans):
            inside = (starts < end) & (ends > start)
            if inside.any():
                words[:, number] = layers[:, inside].mean(1)
        found.append(words)
    return found


def _word_examples(records: Sequence[Tagged], words: Words, entities: bool, options: LayerProbing) -> Examples:
    layers, labels, types, sentences = [], list[str](), list[str](), list[int]()
    for number, (record, vectors) in enumerate(zip(records, words, strict=True)):
        assert record.tags is not None
        for place, (word, tag) in enumerate(zip(record.words, record.tags, strict=True)):
            if len(labels) == options.words:
                break
            if (entities and tag == OUTSIDE) or np.isnan(vectors[0, place, 0]):
                continue
            layers.append(vectors[:, place])
            labels.append(tag.partition("-")[2] if entities else tag)
            types.append(word)
            sentences.append(number)
    if len(set(labels)) < 2:
        raise InputError(f"{len(labels):,} words with {len(set(labels))} different tags: expected two or more")
    return Examples(np.stack(layers, 1), np.array(labels), types, np.array(sentences))


def _sentence_tasks(
    train: Sequence[Tagged], test: Sequence[Tagged], train_words: Words, test_words: Words
) -> list[tuple[str, Examples, Examples]]:
    """The tasks sentence length and word content, as far as there are enough sentences."""
    lengths = [len(record.spans) for record in train]
    edges = np.quantile(lengths, np.arange(1, _BINS) / _BINS)

    def length(record: Tagged) -> str | None:
        return str(int(np.searchsorted(edges, len(record.spans), side="left")))

    counts = Counter(
        word for record in train for word in {w.lower() for w in record.words} if any(c.isalpha() for c in word)
    )
    # Words of medium frequency: those in more than a tenth of the sentences tell little, rare ones cannot be learned.
    by_count = sorted(counts.items(), key=lambda pair: (-pair[1], pair[0]))
    usable = [word for word, n in by_count if 5 <= n <= max(len(train) // 10, 5)]
    content = frozenset(usable[:_CONTENT_WORDS])

    def contained(record: Tagged) -> str | None:
        here = content & {word.lower() for word in record.words}
        return next(iter(here)) if len(here) == 1 else None

    tasks = []
    for task, label in (("sentence length", length), ("word content", contained)):
        splits = [_sentence_examples(r, w, label) for r, w in ((train, train_words), (test, test_words))]
        if all(split is not None and len(set(split.labels)) > 1 for split in splits):
            tasks.append((task, *splits))
    return tasks  # type: ignore[return-value]  # none of them is None


def _sentence_examples(
    records: Sequence[Tagged], words: Words, label: Callable[[Tagged], str | None]
) -> Examples | None:
    layers, labels, sentences = [], list[str](), list[int]()
    for number, (record, vectors) in enumerate(zip(records, words, strict=True)):
        given = label(record)
        known = ~np.isnan(vectors[0, :, 0]) if vectors.shape[1] else np.zeros(0, bool)
        if given is not None and known.any():
            layers.append(vectors[:, known].mean(1))
            labels.append(given)
            sentences.append(number)
    return Examples(np.stack(layers, 1), np.array(labels), [], np.array(sentences)) if labels else None


def control_labels(types: Sequence[str], labels: np.ndarray, all_types: Sequence[str], seed: int) -> np.ndarray:
    """Labels of the control task: one for each word type, sampled by hash with the frequencies of ``labels``.

    ``types`` and ``labels``: of the training words, whose distribution is sampled from (Hewitt and Liang 2019, §2).
    """
    assert len(types) == len(labels)
    of_type = {
        word: labels[int(below(draw(seed_of("control", seed, word), 0), len(labels))[0])] for word in set(all_types)
    }
    return np.array([of_type[word] for word in all_types])


def _probe(
    task: str, train: Examples, test: Examples, options: LayerProbing, progress: Progress
) -> tuple[Probed, Int[np.ndarray, " R"]]:
    right, control = [], list[float]()
    wanted = None
    if train.types:
        wanted = [control_labels(train.types, train.labels, some.types, options.seed) for some in (train, test)]
    for layer in range(len(train.layers)):
        x, y = _scaled(train.layers[layer], test.layers[layer])
        right.append(_predict(x, train.labels, y) == test.labels)
        if wanted is not None:
            same = len(set(wanted[0])) < 2
            control.append(1.0 if same else float((_predict(x, wanted[0], y) == wanted[1]).mean()))
        progress.advance(1)
    correct = np.stack(right)
    samples = resampled_accuracies(correct, test.sentences, options.seed)
    best = samples.argmax(0)
    low, high = np.percentile(samples, _INTERVAL, axis=1)
    commonest = Counter(train.labels.tolist()).most_common(1)[0][0]
    accuracy = correct.mean(1)
    first, last = np.percentile(best, _INTERVAL)
    result = Probed(
        task=task,
        n_train=len(train.labels),
        n_test=len(test.labels),
        n_labels=len(set(train.labels)),
        majority=float((test.labels == commonest).mean()),
        accuracy=accuracy.tolist(),
        interval=[list(ends) for ends in zip(low.tolist(), high.tolist(), strict=True)],
        control=control or None,
        best=int(accuracy.argmax()),
        best_interval=[float(first), float(last)],
    )
    return result, best


def _scaled(x: np.ndarray, y: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Scale every dimension to mean 0 and variance 1 over the training vectors."""
    mean, spread = x.mean(0), np.maximum(x.std(0), 1e-6)
    return (x - mean) / spread, (y - mean) / spread


def _predict(x: np.ndarray, labels: np.ndarray, y: np.ndarray) -> np.ndarray:
    import warnings

    from sklearn.exceptions import ConvergenceWarning
    from sklearn.linear_model import LogisticRegression

    model = LogisticRegression(C=0.1, max_iter=200, tol=1e-3)
    with warnings.catch_warnings():
        # Probes are compared at equal effort; the last digit of a probe's loss does not matter.
        warnings.simplefilter("ignore", ConvergenceWarning)
        model.fit(x, labels)
    return np.asarray(model.predict(y))


def resampled_accuracies(
    correct: Bool[np.ndarray, "L n"], sentences: Int[np.ndarray, " n"], seed: int
) -> Float[np.ndarray, "L R"]:
    """Bootstrap: accuracy by layer over resamples of the test sentences, with all their words."""
    _, owner = np.unique(sentences, return_inverse=True)
    n = int(owner.max()) + 1
    sizes = np.bincount(owner, minlength=n)
    hits = np.stack([np.bincount(owner, row, n) for row in correct])
    drawn = np.random.default_rng(seed).multinomial(n, np.full(n, 1 / n), _RESAMPLES)
    return np.asarray(hits @ drawn.T / np.maximum(drawn @ sizes, 1))


def _differences(best: dict[str, np.ndarray]) -> list[dict[str, Any]]:
    """How many layers higher each later task's best layer is than the first task's, with its interval."""
    (first, base), *others = best.items()
    found = []
    for task, layers in others:
        # Tasks share sentences at most in part: their resamples are treated as independent.
        low, high = np.percentile(layers - base, _INTERVAL)
        found.append(
            {
                "task": task,
                "against": first,
                "mean": float((layers - base).mean()),
                "interval": [float(low), float(high)],
            }
        )
    return found


def _plain(one: Probed) -> dict[str, Any]:
    plain = {name: getattr(one, name) for name in Probed.__dataclass_fields__}
    plain["selectivity"] = None
    if one.control is not None:
        plain["selectivity"] = [a - c for a, c in zip(one.accuracy, one.control, strict=True)]
    return plain
