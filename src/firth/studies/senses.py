"""``firth study senses``: do contextual vectors separate the senses of a word?

A Wikipedia article uses a word in one sense (Gale, Church and Yarowsky 1992, "One sense per discourse"), so cue
words in its other sentences label an occurrence. Each occurrence is then classified by the nearest occurrences of the
same word in other articles, by the cosine of their vectors.
"""

import hashlib
import json
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float

from firth.baseline.config import GramConfig
from firth.baseline.tfidf import fit_vectorizer
from firth.errors import ConfigError, InputError
from firth.files import write_text
from firth.inference.model import load_model
from firth.inference.word_table import open_table
from firth.metrics.neighbours import correct_by_neighbours, principal_components, unit_vectors
from firth.progress import say
from firth.studies.cells import StudyCell
from firth.text.corpus import CorpusReader
from firth.text.records import Text
from firth.text.sentences import split_sentences
from firth.vectors.folder import VectorOptions
from firth.vectors.train import VectorTraining, train_vectors

# Words, their senses, and the cues of each, which also count with a plural s.
CUES = {
    "band/music": "album song guitar tour singer vocals",
    "band/frequency": "frequency frequencies spectrum wavelength transmitter satellite antenna",
    "bank/money": "loan deposit banking banker financial credit currency mortgage shareholder",
    "bank/river": "river tributary tributaries upstream downstream confluence flood riverside estuary",
    "bass/fish": "fish fishing trout angler angling catfish perch species freshwater lake",
    "bass/music": "guitar drum vocals album band keyboard song",
    "battery/electric": "lithium voltage charging laptop phone rechargeable batteries electric",
    "battery/artillery": "artillery regiment infantry gun howitzer battalion brigade fort",
    "character/writing": "alphabet unicode letter vowel consonant script encoding",
    "character/fiction": "novel film actor episode series comic",
    "deck/ship": "hull ship stern turret boiler vessel naval",
    "deck/cards": "card dealer dealt shuffled suit trick trump poker",
    "mouse/computer": "keyboard software windows computer user interface click",
    "mouse/animal": "mice rat gene species rodent protein laboratory mammal",
    "organ/music": "choir organist composer concerto hymn orchestra piano cathedral",
    "organ/body": "liver kidney tissue lung brain cell blood species muscle",
    "pitch/music": "note octave tuning tuned scale chord melody vocal",
    "pitch/sport": "cricket football goal midfielder striker goalkeeper wicket innings rugby",
    "plane/aircraft": "pilot flight aircraft crash airport airline crew",
    "plane/geometry": "vector euclidean theorem angle polygon equation curve axis",
    "plant/factory": "factory factories manufacturing reactor megawatt electricity assembly automobile turbine",
    "plant/organism": "leaf leaves flower flowering seed botanist species genus shrub pollen root",
    "port/harbour": "ship harbour harbor cargo shipping dock ferry ferries fleet",
    "port/computer": "software usb console playstation xbox windows linux arcade processor",
    "root/plant": "leaves plant soil flower species seed stem",
    "root/algebra": "polynomial equation theorem integer algebra algebraic",
    "star/astronomy": "galaxy galaxies orbit solar astronomer planet telescope constellation",
    "star/fame": "film actor actress album television movie song",
    "tank/vehicle": "infantry battalion army armoured armored division brigade panzer military war",
    "tank/container": "fuel gallon litre pump valve liquid gas water aquarium",
    "track/railway": "railway train station railroad locomotive gauge",
    "track/song": "album song single guitar vocals band chart",
}
PICTURED = ("bank", "plant")
VECTORS = {"algorithm": "skip-gram", "width": 100, "epochs": 2, "lowercase": True, "workers": 1}
EVERY = 4  # word vectors are trained on every fourth article
# Names in the table, and their models: folders in --models, except for the bundled one.
SHIPPED = "firth-mini-en"
MODELS = {"ELMo": "elmo", "GPT": "gpt", SHIPPED: SHIPPED}
OCCURRENCES, BASELINES = "occurrences.jsonl", "baselines"
MEAN, WEIGHTED, TFIDF = "mean word vector of the sentence", "the same, weighted by IDF", "TF-IDF of the sentence"
_PART = re.compile(r"[^\W\d_]+")
# After these, bank or track is a verb; and articles on tanks of either sense mention fuel tanks.
_NOT_AFTER = ("to", "will", "would", "can", "could", "may", "might", "must", "should", "fuel")


@dataclass(frozen=True, kw_only=True, slots=True)
class SenseRules:
    """When the cues of an article are clear, and which occurrences are compared."""

    kinds: int = 3  # minimum of distinct cues of the sense outside the sentence
    hits: int = 5  # minimum of occurrences of cues
    per_thousand: float = 4.0  # the same per thousand words of the article
    times: int = 8  # minimum ratio to the occurrences of the other sense's cues
    shortest: int = 8  # words in the sentence
    longest: int = 50
    most: int = 80  # maximum of occurrences of a sense that are compared
    neighbours: int = 5


@dataclass(frozen=True, slots=True)
class LabelledOccurrence:
    """A word at character ``start`` of the sentence ``text``, its sense, and the title of its article."""

    word: str
    sense: str
    title: str
    text: str
    start: int


def study_cells(data: Path, models: Path, out: Path) -> list[StudyCell]:
    """All cells. ``models``: may have the folders ``elmo`` and ``gpt``."""
    text = data / "en-wiki-large" / "train.txt.xz"
    if not text.is_file():
        raise ConfigError(f"{text}: no such file (--data: the folder of the data sets)")
    return sense_cells(text, models, out, say)


def sense_cells(text: Path, models: Path, out: Path, tell: Callable[[str], None]) -> list[StudyCell]:
    """Cells for the occurrences, the word vectors, the baselines, and each model that exists."""
    rules, found = asdict(SenseRules()), str(out / "cells" / "occurrences" / OCCURRENCES)
    cells = [
        StudyCell("occurrences", occurrence_cell, {"text": str(text), "cues": CUES, "rules": rules}),
        StudyCell("word vectors", vector_cell, {"text": str(text), "every": EVERY, "training": VECTORS}),
    ]
    shared = {"occurrences": found, "k": rules["neighbours"]}
    vectors = str(out / "cells" / "word vectors" / "model")
    needs = ("occurrences", "word vectors")
    cells.append(StudyCell(f"scores/{BASELINES}", baseline_cell, {**shared, "vectors": vectors}, needs))
    for name, folder in MODELS.items():
        path = folder if folder == SHIPPED else str(models / folder)
        if path != SHIPPED and not Path(path).is_dir():
            tell(f"{path}: no such folder, so the table has no row for {name}")
            continue
        cells.append(StudyCell(f"scores/{name}", model_cell, {**shared, "model": path}, needs[:1]))
    return cells


def occurrence_cell(folder: Path, *, text: str, cues: dict[str, str], rules: dict[str, Any]) -> dict[str, Any]:
    """Choose equally many occurrences of both senses of each word, one per article; returns counts by word."""
    limits, found = SenseRules(**rules), dict[str, list[LabelledOccurrence]]((name, []) for name in cues)
    for document in CorpusReader([text]):
        for one in labelled(document.paragraphs, cues, limits):
            found[f"{one.word}/{one.sense}"].append(one)
    chosen, counts = list[LabelledOccurrence](), dict[str, int]()
    for word in ambiguous_words(cues):
        senses = [sorted(ones, key=_chance) for name, ones in found.items() if name.startswith(f"{word}/")]
        counts[word] = min(limits.most, *map(len, senses))
        if counts[word] <= limits.neighbours:
            raise InputError(f"{text}: only {counts[word]} clear occurrences of a sense of {word!r}: give more text")
        chosen += sorted((one for ones in senses for one in ones[: counts[word]]), key=_chance)
    write_text(folder / OCCURRENCES, "".join(json.dumps(asdict(one), ensure_ascii=False) + "\n" for one in chosen))
    return {"counts": counts, "found": {name: len(ones) for name, ones in found.items()}}


def ambiguous_words(cues: Iterable[str]) -> list[str]:
    """The words in the names WORD/SENSE, in order."""
    return list(dict.fromkeys(name.split("/")[0] for name in cues))


def _chance(one: LabelledOccurrence) -> bytes:
    return hashlib.sha256(f"{one.word}\n{one.title}".encode()).digest()


def labelled(paragraphs: Sequence[str], cues: dict[str, str], rules: SenseRules) -> Iterator[LabelledOccurrence]:
    """Yield each word's first sentence in an article, if cues outside that sentence identify the sense clearly."""
    first: dict[str, tuple[str, int]] = {}
    not_after = "".join(f"(?<!{word} )" for word in _NOT_AFTER)
    target = re.compile(rf"(?<![\w'-]){not_after}({'|'.join(ambiguous_words(cues))})(?![\w'-])")
    for paragraph in paragraphs[1:]:
        if all(match[1] in first for match in target.finditer(paragraph)):
            continue
        for sentence in split_sentences(paragraph):
            if rules.shortest <= len(sentence.split()) <= rules.longest:
                matches = list(target.finditer(sentence))
                once = Counter(match[1] for match in matches)
                for match in matches:
                    if once[match[1]] == 1:
                        first.setdefault(match[1], (sentence, match.start()))
    everywhere = Counter(part for paragraph in paragraphs if first for part in _PART.findall(paragraph.lower()))
    for word, (sentence, start) in first.items():
        outside = everywhere - Counter(_PART.findall(sentence.lower()))
        hits = {
            name.split("/")[1]: [outside[cue] + outside[f"{cue}s"] for cue in of.split()]
            for name, of in cues.items()
            if name.startswith(f"{word}/")
        }
        (sense, most), (_, other) = sorted(hits.items(), key=lambda item: -sum(item[1]))
        enough = max(rules.hits, rules.per_thousand * outside.total() / 1000, rules.times * sum(other))
        if sum(map(bool, most)) >= rules.kinds and sum(most) >= enough:
            yield LabelledOccurrence(word, sense, paragraphs[0], sentence, start)


def vector_cell(folder: Path, *, text: str, every: int, training: dict[str, Any]) -> dict[str, Any]:
    """Train word vectors on one in ``every`` articles."""
    model, part = folder / "model", folder / "text.txt"
    if not model.exists():
        articles = islice(CorpusReader([text]), 0, None, every)
        write_text(part, "\n\n".join("\n".join(article.paragraphs) for article in articles) + "\n")
        train_vectors([part], model, VectorTraining(**training), VectorOptions())
        part.unlink()
    return {"words": len(open_table(model).words), "training": training, "every": every}


def baseline_cell(folder: Path, *, occurrences: str, vectors: str, k: int) -> dict[str, Any]:
    """Compute the accuracies of the sentence's other words, as word vectors and as TF-IDF."""
    ones, table = read_occurrences(occurrences), open_table(vectors)
    beside = [f"{one.text[: one.start]} {one.text[one.start + len(one.word) :]}" for one in ones]
    parts = [[part for part in _PART.findall(text.lower()) if part in table.numbers] for text in beside]
    n_with = Counter(part for found in parts for part in set(found))
    found = {name: np.zeros((len(ones), table.rows.shape[1])) for name in (MEAN, WEIGHTED)}
    for i, part in ((i, part) for i, found_here in enumerate(parts) for part in found_here):
        row = table.rows[table.numbers[part]].float().numpy()
        found[MEAN][i] += row
        found[WEIGHTED][i] += np.log(len(ones) / n_with[part]) * row
    texts = [Text(text) for text in beside]
    found[TFIDF] = fit_vectorizer(texts, GramConfig()).read(texts).toarray()
    return {"accuracy": {name: accuracies(ones, x, k) for name, x in found.items()}}


def model_cell(folder: Path, *, occurrences: str, model: str, k: int) -> dict[str, Any]:
    """Compute the accuracies of every layer of a model, and the best layer's vectors in two dimensions."""
    ones = read_occurrences(occurrences)
    each = []
    for one, found in zip(ones, load_model(model).vectors_stream([one.text for one in ones]), strict=True):
        number = next(i for i, unit in enumerate(found.words) if unit.start <= one.start < unit.end)
        each.append([found.of_words(layer)[number] for layer in found.each])
    layers = {f"layer {i}": np.stack(layer) for i, layer in enumerate(zip(*each, strict=True))}
    accuracy = {name: accuracies(ones, x, k) for name, x in layers.items()}
    best = max(accuracy, key=lambda name: sum(accuracy[name].values()))
    return {"accuracy": accuracy, "best": best, "points": {word: points(ones, layers[best], word) for word in PICTURED}}


def read_occurrences(path: str) -> list[LabelledOccurrence]:
    """Read the occurrences chosen by their cell."""
    # Not splitlines, which also splits at characters that a sentence may contain, such as U+2028.
    return [LabelledOccurrence(**json.loads(line)) for line in Path(path).read_text("utf-8").split("\n") if line]


def accuracies(ones: Sequence[LabelledOccurrence], x: Float[np.ndarray, "n H"], k: int) -> dict[str, float]:
    """By word, the share of occurrences whose nearest neighbours, all from other articles, have the same sense."""
    found = {}
    for word in dict.fromkeys(one.word for one in ones):
        chosen = [i for i, one in enumerate(ones) if one.word == word]
        senses = np.array([ones[i].sense for i in chosen])
        found[word] = round(float(correct_by_neighbours(x[chosen], senses, k).mean()), 4)
    return found


def points(ones: Sequence[LabelledOccurrence], x: Float[np.ndarray, "n H"], word: str) -> dict[str, Any]:
    """Two principal components of a word's vectors by sense.

    The occurrences of a sense nearest to its centre and farthest from it are labelled.
    """
    chosen = [i for i, one in enumerate(ones) if one.word == word]
    places = np.round(principal_components(unit_vectors(x[chosen])), 3)
    found: dict[str, Any] = {}
    for sense in dict.fromkeys(ones[i].sense for i in chosen):
        own = [number for number, i in enumerate(chosen) if ones[i].sense == sense]
        across, up = places[own].T
        distance = np.hypot(across - across.mean(), up - up.mean())
        labels = {around(ones[chosen[own[i]]]): i for i in (int(distance.argmin()), int(distance.argmax()))}
        found[sense] = {"x": across.tolist(), "y": up.tolist(), "labels": labels}
    return found


def around(one: LabelledOccurrence) -> str:
    """The occurrence with four words on either side."""
    before = " ".join(one.text[: one.start].split(" ")[-5:])  # ends with a space or a mark before the word
    return before + " ".join(one.text[one.start :].split(" ")[:5])
