"""Make the golden files of tests/metrics: the official scripts' scores for inputs of our own.

    .venv/bin/python scripts/make_metric_fixtures.py --conlleval conlleval.pl --conlleval-python conlleval.py \
        --squad1 evaluate-v1.1.py --squad2 evaluate-v2.0.py --korquad evaluate-v1.0.py --klue functional.py

The scripts are not part of this repository. They are: conlleval of CoNLL-2000 (Perl, version 2004-01-26) and its
Python version, which supports BIOES (sighsmile/conlleval); SQuAD's two evaluators (rajpurkar/SQuAD-explorer); KorQuAD
1.0's (korquad.github.io); klue_baseline/metrics/functional.py of KLUE-benchmark/KLUE-baseline. Needs perl, matplotlib,
scikit-learn and seqeval.
"""

import argparse
import ast
import json
import random
import re
import runpy
import subprocess
import sys
import tempfile
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

OUT = Path(__file__).resolve().parent.parent / "tests" / "fixtures" / "metrics"
KLUE_NER_TAGS = ["B-PS", "I-PS", "B-LC", "I-LC", "B-OG", "I-OG", "B-DT", "I-DT", "B-TI", "I-TI", "B-QT", "I-QT", "O"]
OVERALL = re.compile(r"processed (\d+) tokens with (\d+) phrases; found: (\d+) phrases; correct: (\d+)")
SHARES = re.compile(r"precision: +([\d.]+)%; recall: +([\d.]+)%; FB1: +([\d.]+)")


# --- tags ---


def random_tags(rng: random.Random, prefixes: str, labels: list[str], length: int) -> list[str]:
    """Random tags, ignoring which may follow which; about every third sentence is mostly O."""
    share_outside = rng.choice([0.15, 0.3, 0.75])
    tags = []
    for _ in range(length):
        label = rng.choice(labels)
        prefix = rng.choice(prefixes)
        tags.append("O" if rng.random() < share_outside else f"{prefix}-{label}" if label else prefix)
    return tags


def disturbed(rng: random.Random, tags: list[str], prefixes: str, labels: list[str]) -> list[str]:
    other = random_tags(rng, prefixes, labels, len(tags))
    share = rng.choice([0.0, 0.1, 0.4, 1.0])
    return [b if rng.random() < share else a for a, b in zip(tags, other, strict=True)]


def tag_case(
    seed: int, prefixes: str, labels: list[str], n_sentences: int = 12
) -> tuple[list[list[str]], list[list[str]]]:
    rng = random.Random(seed)
    gold = [random_tags(rng, prefixes, labels, rng.randint(1, 12)) for _ in range(n_sentences)]
    return gold, [disturbed(rng, tags, prefixes, labels) for tags in gold]


def perl_conlleval(script: str, gold: list[list[str]], predicted: list[list[str]]) -> dict[str, Any]:
    sentences = [
        "".join(f"w {a} {b}\n" for a, b in zip(*pair, strict=True)) for pair in zip(gold, predicted, strict=True)
    ]
    printed = subprocess.run(
        ["perl", script], input="\n".join(sentences), capture_output=True, text=True, check=True
    ).stdout.splitlines()
    overall = OVERALL.search(printed[0])
    assert overall, printed
    by_label = {}
    for line in printed[2:]:
        name, _, rest = line.partition(":")
        shares = SHARES.search(rest)
        assert shares, line
        by_label[name.strip()] = [*map(float, shares.groups()), int(line.split()[-1])]
    accuracy, *shares = map(float, re.findall(r"([\d.]+)(?=%|$)", printed[1]))
    return {
        "n_tokens_gold_predicted_correct": list(map(int, overall.groups())),
        "accuracy_precision_recall_f1": [accuracy, *shares],
        "by_label_precision_recall_f1_found": by_label,
    }


def python_conlleval(script: str, gold: list[list[str]], predicted: list[list[str]]) -> dict[str, list[int]]:
    """Gold, predicted and correct entities of each label."""
    # As when the script itself reads a file, an O separates sentences.
    flat = [[tag for tags in side for tag in [*tags, "O"]] for side in (gold, predicted)]
    correct, in_gold, in_predicted, *_ = runpy.run_path(script)["count_chunks"](*flat)
    return {label: [in_gold[label], in_predicted[label], correct[label]] for label in sorted({*in_gold, *in_predicted})}


def make_conlleval(perl: str, python: str) -> dict[str, Any]:
    corners = [
        "I-A I-A O I-B",
        "B-A I-B I-B",
        "B-A B-A I-A",
        "O I-A B-A",
        "I-A B-A B-B I-B",
        "I-A",
        "B-A",
        "O",
        "B-A-x I-A-x I-A-y",
        "E-A E-A I-A E-A",
        "I-A E-A I-A",
        "B I I O I",
        "B-A I I-A",
        "I-A E-B E-B",
    ]
    gold = [line.split() for line in corners]
    shifted = [tags[1:] + tags[:1] for tags in gold]
    cases = {
        "corners, equal": (gold, gold),
        "corners, turned by one": (gold, shifted),
        "nothing predicted": ([["B-A", "I-A", "O"]], [["O", "O", "O"]]),
        "nothing there": ([["O", "O"]], [["O", "O"]]),
        "nothing in gold": ([["O", "O"]], [["I-A", "O"]]),
        "entity over a sentence border": ([["B-A"], ["I-A"]], [["B-A"], ["I-A"]]),
    }
    for seed in range(8):
        cases[f"BIO mix {seed}"] = tag_case(seed, "BII", ["PER", "LOC", "MISC"])
        cases[f"IOE mix {seed}"] = tag_case(100 + seed, "IIE", ["PER", "LOC"])
        cases[f"one label {seed}"] = tag_case(200 + seed, "BI", ["X"])
        cases[f"bare tags {seed}"] = tag_case(300 + seed, "BI", ["", "X"])
    bioes = {f"BIOES mix {seed}": tag_case(400 + seed, "BIES", ["PER", "LOC"]) for seed in range(12)}
    return {
        "perl": [joined(name, *pair) | perl_conlleval(perl, *pair) for name, pair in cases.items()],
        "python": [joined(name, *pair) | {"by_label": python_conlleval(python, *pair)} for name, pair in bioes.items()],
    }


def joined(name: str, gold: list[list[str]], predicted: list[list[str]]) -> dict[str, Any]:
    return {
        "name": name,
        "gold": [" ".join(tags) for tags in gold],
        "predicted": [" ".join(tags) for tags in predicted],
    }


def klue_functions(script: str) -> tuple[Callable[..., float], Callable[..., float]]:
    """Load the two functions alone, because the file imports the whole baseline."""
    import numpy
    import sklearn.metrics
    from seqeval.metrics import f1_score
    from seqeval.scheme import IOB2

    wanted = ("klue_ner_entity_macro_f1", "klue_ner_char_macro_f1")
    tree = ast.parse(Path(script).read_text("utf-8"))
    tree.body = [node for node in tree.body if isinstance(node, ast.FunctionDef) and node.name in wanted]
    names: dict[str, Any] = {"np": numpy, "sklearn": sklearn, "ner_f1_score": f1_score, "IOB2": IOB2, "Any": Any}
    exec(compile(tree, script, "exec"), names | {"List": list}, names)
    return names[wanted[0]], names[wanted[1]]


def make_klue(script: str) -> list[dict[str, Any]]:
    entity, character = klue_functions(script)
    cases = {
        "equal": ([["B-PS", "I-PS", "O", "B-DT"]],) * 2,
        "an I that follows nothing": ([["O", "B-PS", "I-PS"]], [["O", "I-PS", "I-PS"]]),
        "label changes inside": ([["B-PS", "I-PS", "O"]], [["B-PS", "I-LC", "I-PS"]]),
        "a sentence ends in B, the next starts with I": (
            [["O", "B-QT"], ["O", "B-QT"]],
            [["O", "B-QT"], ["I-QT", "B-QT"]],
        ),
    }
    labels = ["PS", "LC", "OG", "DT", "TI", "QT"]
    for seed in range(10):
        cases[f"mix {seed}"] = tag_case(seed, "BII", labels[: seed % 6 + 1])
    results = []
    for name, (gold, predicted) in cases.items():
        # The baseline's own lists: all sentences in one, each between two markers with tag O.
        marked = [
            [KLUE_NER_TAGS.index(tag) for tags in side for tag in ["O", *tags, "O"]] for side in (gold, predicted)
        ]
        plain = [[KLUE_NER_TAGS.index(tag) for tags in side for tag in tags] for side in (gold, predicted)]
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            scores = {
                "entity_macro_f1": entity(marked[1], marked[0], KLUE_NER_TAGS),
                "character_macro_f1": character(plain[1], plain[0], KLUE_NER_TAGS),
                # The same function with twelve labels: O is the last.
                "character_macro_f1_without_o": character(plain[1], plain[0], KLUE_NER_TAGS[:-1]),
            }
        results.append(joined(name, gold, predicted) | {"percent": scores})
    return results


# --- answers ---

ENGLISH = (
    "The  Cat's a-an an!|“the” A.|Theatre an|1,000|the|a|Paris|in Paris, France|paris|Saint-Denis|Zürich|Zurich|"
    "12 %|12%|$5 million|the Broncos|Denver Broncos|broncos broncos|an apple a day|apple day|U.S.|us|É|naïve café|"
    "Beyoncé Knowles-Carter||!|İstanbul|state-of-the-art|of the of the|1 2 3|3 2 1|x_y|don't|dont|"
    "The The|A\tb\u00a0c\u2003d"
)
KOREAN = (
    "《삼국사기》|삼국사기|'홍길동'|홍길동|홍 길동|1394년|1394년부터|서울(한양)|서울 한양|서울한양|〈향가〉 25수|"
    '향가 25수|‘가’|“가”|가가나|가나나|BTS|bts|3.1 운동|31운동|3·1운동|<태극기>|"태극기"|태극기!|the 한국|한국| |'
    "()|a,b|ab|김구, 안창호|안창호 김구"
)


def texts(pool: str) -> list[str]:
    return pool.split("|")


def questions(rng: random.Random, pool: list[str], share_unanswerable: float, n: int) -> dict[str, list[str]]:
    return {
        f"q{i}": [] if rng.random() < share_unanswerable else [rng.choice(pool) for _ in range(rng.randint(1, 3))]
        for i in range(n)
    }


def answers(rng: random.Random, pool: list[str], gold: dict[str, list[str]]) -> dict[str, str]:
    """Predictions, a third each: right, random, random with words reordered or added."""
    found = {}
    for name, accepted in gold.items():
        text = rng.choice(
            [*(accepted or [""]), rng.choice(pool), " ".join([*rng.choice(pool).split()[::-1], rng.choice(pool)])]
        )
        found[name] = text
    return found


def as_dataset(gold: dict[str, list[str]], version: str) -> dict[str, Any]:
    asked = [{"id": name, "answers": [{"text": text} for text in accepted]} for name, accepted in gold.items()]
    return {"version": version, "data": [{"paragraphs": [{"qas": asked}]}]}


def make_by_question(script: str, pool: str, seed: int) -> dict[str, Any]:
    """Score each gold answer against each prediction alone, and a larger set together, some without a prediction."""
    evaluate = runpy.run_path(script)["evaluate"]
    pairs = [
        [evaluate(as_dataset({"q": [answer]}, "")["data"], {"q": text}) for text in texts(pool)]
        for answer in texts(pool)
    ]
    rng = random.Random(seed)
    gold = questions(rng, texts(pool), 0, 60)
    predictions = answers(rng, texts(pool), gold)
    for name in ("q3", "q41"):
        del predictions[name]
    return {
        "texts": texts(pool),
        "exact_match": [[scores["exact_match"] for scores in row] for row in pairs],
        "f1": [[round(scores["f1"], 6) for scores in row] for row in pairs],
        "gold": gold,
        "predictions": predictions,
        "expected": evaluate(as_dataset(gold, "")["data"], predictions),
    }


def squad2(script: str, case: dict[str, Any]) -> dict[str, float]:
    with tempfile.TemporaryDirectory() as folder:
        files = {"data": as_dataset(case["gold"], "v2.0"), "predictions": case["predictions"]}
        files["no_answer"] = case["no_answer_scores"]
        for name, content in files.items():
            Path(folder, f"{name}.json").write_text(json.dumps(content), "utf-8")
        command = [
            sys.executable,
            script,
            f"{folder}/data.json",
            f"{folder}/predictions.json",
            "-o",
            f"{folder}/out.json",
        ]
        if case["no_answer_scores"]:
            command += ["-n", f"{folder}/no_answer.json", "-t", str(case["threshold"]), "-p", f"{folder}/plots"]
        subprocess.run(command, check=True, capture_output=True)
        return json.loads(Path(folder, "out.json").read_text("utf-8"))


def make_squad2(script: str) -> list[dict[str, Any]]:
    cases = []
    for seed, share in enumerate([0.4, 0.4, 0.0, 1.0, 0.5, 0.5]):
        rng = random.Random(seed)
        gold = questions(rng, texts(ENGLISH), share, 40)
        predictions = {
            name: "" if rng.random() < 0.3 else text for name, text in answers(rng, texts(ENGLISH), gold).items()
        }
        scores = None
        if seed:
            # Few distinct values, so that ties occur. The last two are differences of logits, below and above 0.
            offset = -5.0 if seed >= 4 else 0.0
            scores = {name: offset + rng.randint(0, 10) / (10 if seed < 4 else 1) for name in gold}
            rng.shuffle(order := list(scores))
            scores = {name: scores[name] for name in order}
        case = {"gold": gold, "predictions": predictions, "no_answer_scores": scores}
        case["threshold"] = {1: 1.0, 4: 0.0, 5: -2.0}.get(seed, 0.5)
        cases.append(case | {"expected": squad2(script, case)})
    return cases


def write(name: str, content: Any) -> None:
    lines = json.dumps(content, ensure_ascii=False, indent=1)
    # Lists of plain values on one line each; no text here has brackets.
    lines = re.sub(r"\[[^\[\]{}]*\]", lambda found: re.sub(r"\s*\n\s*", " ", found[0]), lines)
    (OUT / f"{name}.json").write_text(lines + "\n", "utf-8")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    for name in ("conlleval", "conlleval-python", "squad1", "squad2", "korquad", "klue"):
        parser.add_argument(f"--{name}", required=True, metavar="SCRIPT")
    paths = parser.parse_args()
    OUT.mkdir(parents=True, exist_ok=True)
    write("conlleval", make_conlleval(paths.conlleval, paths.conlleval_python))
    write("klue_ner", make_klue(paths.klue))
    write("squad_v1", make_by_question(paths.squad1, ENGLISH, seed=1))
    write("korquad_v1", make_by_question(paths.korquad, KOREAN, seed=2))
    write("squad_v2", make_squad2(paths.squad2))


if __name__ == "__main__":
    main()
