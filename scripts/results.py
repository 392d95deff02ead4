"""Write docs/results.md, and the scores in the cards of the shipped models, from the JSON files in docs/results/, so
that no number is typed by hand.

.venv/bin/python scripts/results.py
"""

import json
from pathlib import Path
from typing import Any

from ship import renewed

from firth.names import SHIPPED, WEIGHTS
from firth.studies import directionality, representations, unknown_words
from firth.studies.ablation_tables import ABLATIONS
from firth.studies.ablations_report import ablation_table, model_table
from firth.studies.directionality_report import direction_table, pretraining_table, published_table
from firth.studies.finetuning import SCRATCH
from firth.studies.finetuning_report import baselines, feature_table, label_table, task_table
from firth.studies.learning import TOKENS
from firth.studies.learning_report import learning_table
from firth.studies.representations_report import cost_table, layer_table, representation_table
from firth.studies.representations_report import label_curves as error_curves
from firth.studies.senses import SenseRules
from firth.studies.senses_report import accuracy_table, word_table
from firth.studies.translation_report import score_signatures, score_table, training_text
from firth.studies.unknown_words_report import rule_table

OUT = Path("docs/results")

HEAD = """# Results

What the recorded runs show, followed by the numbers and the commands that reproduce them.

- **Firth now trains better models than some of these.** Tables marked *Earlier models* were recorded with BERTs
  pre-trained on at most 12 M tokens with an earlier recipe; [learning](learning.md) says what has changed since.
- **Nearly everything was trained on two CPU cores**, in minutes to hours per model. The fourth runs of the shipped
  models, their fine-tuning and `bert-medium` ran on a GPU, in minutes. Small models trained on little text show that
  the code is correct and what each method gains over its baselines, not what it reaches at full size.
- **Compare with the baseline first.** TF-IDF with a linear model wins where single words decide; a pre-trained model
  wins where words must be judged in context ([table](#what-pre-training-is-worth)). `firth compare` shows which wins
  on your labels.
- **Continued pre-training on a domain's text**, with an extended vocabulary, improves masked-LM loss and downstream
  accuracy ([table](#continued-pre-training-on-a-domain)).
- **Compare with the standard deviation.** Scores are mean ± standard deviation over seeds; a difference of about one
  standard deviation between means of three seeds is not evidence; [`firth compare`](verbs/compare.md) gives intervals.

## How it was recorded

Every number comes from a JSON file in `docs/results`; the command at the head of each section reproduces it. `make
models` trains the models (the repository contains the weights of the shipped ones), `scripts/record.py` records them,
and `scripts/results.py` writes this page.
"""

# A new record has neither the mark of earlier models nor a recipe without ``init``, so it omits this sentence.
EARLIER = (
    "*Earlier models:* the BERTs of this table were pre-trained on at most 12 M tokens with the earlier recipe; "
    "[learning](learning.md) says what has changed since.\n"
)


TERMS = {
    "mlm_loss": "masked-LM loss",
    "mlm_accuracy": "masked-LM accuracy",
    "nsp_accuracy": "next-sentence accuracy",
    "nsp_loss": "next-sentence loss",
}


def run_section(title: str, name: str, *, superseded: bool = False) -> str:
    """A pre-training run; without its masked sentences if a later run supersedes it."""
    facts: dict[str, Any] = json.loads((OUT / f"{name}.json").read_text("utf-8"))
    corpus, encoder = facts["corpus"], facts["recipe"]["encoder"]
    train, optim = facts["recipe"]["train"], facts["recipe"]["optim"]
    terms = {key: title for key, title in TERMS.items() if key in next(iter(facts["held_out"].values()))}
    scores = [
        [
            f"{length.removeprefix('rows of ')} tokens",
            *(f"{found[key]:.1%}" if key.endswith("accuracy") else f"{found[key]:.3f}" for key in terms),
        ]
        for length, found in facts["held_out"].items()
    ]
    lines = [
        f"## {title}\n",
        f"```\n{facts['command']}\n```\n",
        *([] if "init" in facts["recipe"] else [EARLIER]),
        f"{encoder['n_layers']} layers, hidden size {encoder['width']}, a cased vocabulary of "
        f"{encoder['vocab_size']:,} tokens; {facts['steps']:,} steps of at most "
        f"{train['batch_tokens'] * train['micro_batches']:,} tokens "
        f"({optim['kind']}, learning rate {optim['learning_rate']:g}); {corpus['tokens'] / 1e6:.1f} M tokens of text "
        f"in {corpus['documents']:,} documents, {corpus['held_out_tokens'] / 1e6:.2f} M held out. "
        f"{facts['minutes']:.0f} minutes on {machine_of(facts)} (median {facts['median_tokens_per_s']:,.0f} tokens/s), "
        f"torch {facts['torch']}, commit {facts['commit']}.\n",
        f"![curves](results/{name}.png)\n",
        "On held-out text ({:,} predictions, 15 % of tokens masked, 80/10/10), by sequence length:\n".format(
            int(next(iter(facts["held_out"].values()))["mlm_count"])
        ),
        *markdown(["", *terms.values()], scores),
        *(
            f"\n{name}: in {share:.1%} of the pairs the grammatical sentence is the likelier one (mean over paradigms, "
            "every tenth pair, each token masked in turn)."
            for name, share in facts.get("pairs", {}).items()
        ),
        *(
            f"\nPseudo-perplexity of held-out sentences: {cased['as written']:.1f} per token as written, "
            f"{cased['lower case']:.1f} in lower case."
            for cased in [facts.get("pseudo_perplexity")]
            if cased
        ),
        *([] if superseded else masked_sentences(facts["examples"])),
        "",
    ]
    return "\n".join(lines)


def masked_sentences(examples: list[dict[str, Any]]) -> list[str]:
    return [
        "\nMasked tokens of held-out sentences, chosen by a hash, with the three most probable predictions:\n",
        "| sentence | original | predictions |",
        "|---|---|---|",
        *(
            f"| {clean(e['text'])} | {e['was']} | {', '.join(f'{clean(b)} {p:.0%}' for b, p in e['best'][:3])} |"
            for e in examples
        ),
    ]


# Variations whose cells have another name in the record.
RENAMED = {"random start": "random initialisation"}


def earlier(record: dict[str, Any]) -> list[str]:
    return [EARLIER] if record.get("earlier_recipe") else []


def machine_of(record: dict[str, Any]) -> str:
    machine = str(record["machine"]).replace("processor thread", "CPU thread")
    # Records of pre-training runs count the threads of each process.
    return machine.replace(" 1 CPU threads,", " 1 CPU thread per process,")


def clean(text: str) -> str:
    return text.replace("|", "\\|")


def demo_section() -> str:
    facts: dict[str, Any] = json.loads((OUT / "demo.json").read_text("utf-8"))
    sizes = [str(n) for n in facts["settings"]["settings"]["per_class"]]
    rows = [
        f"| {task} | {start} | {' | '.join(f'{100 * x[n][0]:.1f} ± {100 * x[n][1]:.1f}' for n in sizes)} |"
        for task, starts in facts["accuracy"].items()
        for start, x in starts.items()
    ]
    lines = [
        "## The demo\n",
        "```\nmake demo; .venv/bin/python scripts/demo_picture.py demo\n```\n",
        "Which part of the standard library does a docstring come from, and is a Korean film review positive? Test "
        "accuracy by number of labels per class, mean ± standard deviation over "
        f"{facts['settings']['settings']['draws']} samples of the labels. "
        f"{sum(facts['seconds'].values()) / 60:.0f} minutes in all on {facts['machine']}, commit {facts['commit']}.\n",
        f"| task | start | {' | '.join(sizes)} |",
        f"|---|---|{'---|' * len(sizes)}",
        *rows,
        "\n![accuracy over labels](images/demo.png)\n",
    ]
    return "\n".join(lines)


def filled(header: list[str], rows: list[list[Any]]) -> tuple[list[str], list[list[Any]]]:
    """A table without the columns that no run has filled."""
    kept = [at for at in range(len(header)) if any(row[at] not in (None, "", "–") for row in rows)]
    return [header[at] for at in kept], [[row[at] for at in kept] for row in rows]


def study_section() -> str:
    record: dict[str, Any] = json.loads((OUT / "finetuning.json").read_text("utf-8"))
    facts = record["facts"]
    header, tasks = filled(*task_table(facts))
    scratch = "the same encoder trained from scratch, " if SCRATCH in header else ""
    features: list[str] = []
    if len(rows := feature_table(facts)) > 1:  # the last is fine-tuned, for comparison
        features = [
            "\n### Named entities: frozen features and fine-tuning\n",
            *earlier(record),
            "CoNLL-2003, dev file; the encoder is frozen except in the last row (Devlin et al. 2018, Table 7).\n",
            *markdown(["features, head", "entity F1", "seconds per run"], rows),
            "",
            *record["remarks"]["features"],
        ]
    lines = [
        "## What pre-training is worth\n",
        "```\nfirth study finetuning --data ../shared/data --out runs/study\n```\n",
        *earlier(record),
        f"The shipped models, fine-tuned, {scratch}and a baseline without pre-training. "
        "Scores on dev files in percent, mean ± standard deviation over three seeds, with all labels; every choice was "
        "made on a tenth of the training examples, and each dev file was scored once per run. Several data sets are "
        "subsets of the published ones, so the scores are not comparable with papers. "
        f"{len(facts)} cells, {record['hours']:.1f} hours in all, several at a time, on {machine_of(record)}, torch "
        f"{record['torch']}, commit {record['commit']}.\n",
        *markdown(header, tasks),
        f"\n{baselines(facts)}\n",
        *record["remarks"]["tasks"],
        *features,
        "\n### Numbers of labels\n",
        *earlier(record),
        "![accuracy on SST-2 over training examples](results/finetuning-labels.png)\n",
        *markdown(*filled(*label_table(facts))),
        "",
        *record["remarks"]["labels"],
        "The last column is the mean difference ± half of its 95 % interval; all other ± are standard deviations.",
        "",
    ]
    return "\n".join(lines)


def learning_section() -> str:
    record: dict[str, Any] = json.loads((OUT / "learning.json").read_text("utf-8"))
    facts = record["facts"]
    lines = [
        "## What makes a small BERT learn\n",
        "```\nfirth study learning --data ../shared/data --models models --out runs/learning\n```\n",
        "One change at a time to the pre-training of `bert-mini`; [learning](learning.md#the-study) says what each row "
        "is. Held-out masked-LM loss with the published masks, by sequence length; tokens until the loss was below a "
        "value; the share of minimal pairs (every tenth) whose grammatical sentence is the likelier one. Mean ± "
        "standard deviation over seeds; predictions were written down before. "
        f"{len(facts)} cells, {record['hours']:.1f} core-hours, on {machine_of(record)}, torch {record['torch']}, "
        f"commit {record['commit']}.\n",
    ]
    for budget in TOKENS:
        header, rows = learning_table(facts, budget)
        if rows:
            lines += [f"### {budget} tokens\n", *markdown(header, rows), ""]
    lines += ["![each seed](results/learning.png)\n", *record["remarks"].get("text", []), ""]
    return "\n".join(lines)


def translation_section() -> str:
    record: dict[str, Any] = json.loads((OUT / "translation.json").read_text("utf-8"))
    facts, recipe = record["facts"], record["recipe"]
    encoder = recipe["encoder"]
    lines = [
        "## The Transformer, English to German\n",
        "```\nfirth study translation --data ../shared/data --out runs/study-translation\n```\n",
        f"29,000 captions of Multi30k; {encoder['n_layers']} layers per side, {record['parameters'] / 1e6:.1f} M "
        f"parameters; steps of {recipe['train']['batch_tokens']:,} tokens, counting both sides. "
        f"{training_text(facts['training'])} On {machine_of(record)}, torch {record['torch']}, commit "
        f"{record['commit']}.\n",
        "![perplexity over steps](results/translation.png)\n",
        "Scores on the 1,014 validation captions, which were also used to choose the best model:\n",
        *markdown(*score_table(facts)),
        f"\n{score_signatures(facts)}\n",
        *record["remarks"],
        "\nThe first captions, translated by the averaged model with a beam of 4:\n",
        *markdown(
            ["source", "reference", "translation"],
            [[clean(e[key]) for key in ("source", "reference", "found")] for e in record["examples"]],
        ),
        "",
    ]
    return "\n".join(lines)


def directionality_section() -> str:
    record: dict[str, Any] = json.loads((OUT / "directionality.json").read_text("utf-8"))
    facts = record["facts"]
    lines = [
        "## Left to right against both directions\n",
        "```\nfirth study directionality --data ../shared/data --models models --out runs/directionality\n```\n",
        *earlier(record),
        f"Models of one size (4 layers, hidden size 256, a vocabulary of 16,000 tokens), each pre-trained on the same "
        f"English text for {record.get('steps', directionality.STEPS):,} steps of "
        f"{record.get('batch_tokens', directionality.BATCH_TOKENS):,} tokens with the same schedule and learning "
        f"rate, then fine-tuned on at most "
        f"{directionality.MOST_EXAMPLES:,} examples for three epochs with three seeds (Devlin et al. "
        "2018, Table 5). As published, GPT is fine-tuned with a language-model loss in addition to the "
        "task's. Scores on dev files in percent, mean ± standard deviation; every choice was made on a tenth of the "
        f"training examples. {len(facts)} cells, {record['hours']:.1f} core-hours in all, beside other work, on "
        f"{machine_of(record)}, torch {record['torch']}, commit {record['commit']}.\n",
        *markdown(*direction_table(facts)),
        "\n![each run](results/directionality.png)\n",
        "The paper's scores at base size, for the tasks that are the same:\n",
        *markdown(*published_table()),
        "\nPre-training, with scores on held-out text (masked tokens for BERT, every next token for the others):\n",
        *markdown(*pretraining_table(facts)),
        "",
        *record["remarks"].get("text", []),
        "",
    ]
    return "\n".join(lines)


def representations_section() -> str:
    record: dict[str, Any] = json.loads((OUT / "representations.json").read_text("utf-8"))
    facts, remarks = record["facts"], record["remarks"]
    lines = [
        "## From word vectors to BERT\n",
        "```\nfirth study representations --data ../shared/data --out runs/representations\n```\n",
        *earlier(record),
        f"Each system was pre-trained on one core for about {representations.CPU_SECONDS // 60} minutes, on the same "
        "English text (CoVe on translated captions, on top of the word2vec vectors), then applied as published, either "
        "fine-tuned or frozen below a network; at most "
        f"{representations.MOST_TAGGED:,} sentences or 8,000 texts, three seeds. Scores on dev files in percent, mean "
        "± standard deviation; every choice was made on a tenth of the training "
        f"examples. {len(facts)} cells, {record['hours']:.1f} core-hours, on {machine_of(record)}, torch "
        f"{record['torch']}, commit {record['commit']}.\n",
        *markdown(*representation_table(facts)),
        "\n![each run](results/representations.png)\n",
        *remarks.get("tasks", []),
        "\nCost. The losses cover different tokens, words and directions, so they are not comparable:\n",
        *markdown(*cost_table(facts)),
    ]
    if layer_table(facts)[1]:
        lines += ["\n### The scalar mix of ELMo's layers, by task\n", *markdown(*layer_table(facts)), ""]
        lines += remarks.get("layers", [])
    if curves := error_curves(facts):
        sizes = sorted({n for xs, _ in curves.values() for n in xs})
        rows = [
            [start, *(f"{error:.1f}" if (error := dict(zip(*curve, strict=True)).get(n)) else "–" for n in sizes)]
            for start, curve in curves.items()
        ]
        lines += ["\n### ULMFiT: numbers of labels\n", "Error on the AG News dev file, in percent.\n"]
        lines += [*markdown(["training examples", *(f"{n:,.0f}" for n in sizes)], rows), ""]
        lines += remarks.get("labels", [])
    return "\n".join([*lines, ""])


def ablations_section() -> str:
    record: dict[str, Any] = json.loads((OUT / "ablations.json").read_text("utf-8"))
    facts, remarks = record["facts"], record["remarks"]
    lines = [
        "## Ablations of the models before BERT\n",
        "```\nfirth study ablations --data ../shared/data --out runs/ablations\n```\n",
        "One part is left out at a time; three seeds. Scores on dev files in percent, mean ± standard deviation; the "
        "paper's columns come from its own models and data, so only the order of the rows is comparable. Every choice "
        f"was made on a tenth of the training examples. {len(facts)} cells, {record['hours']:.1f} hours, on "
        f"{machine_of(record)}, torch {record['torch']}, commit {record['commit']}.\n",
    ]
    for name, ablation in ABLATIONS.items():
        header, rows = ablation_table(facts, name)
        rows = [[RENAMED.get(row[0], row[0]), *row[1:]] for row in rows]
        if rows:
            lines += [f"### {name}\n", *markdown(header, rows), f"\nPaper: {ablation.source}.\n"]
            lines += [*remarks.get(name, []), ""]
    return "\n".join([*lines, "### Their pre-training\n", *markdown(*model_table(facts)), ""])


def unknown_words_section() -> str:
    record: dict[str, Any] = json.loads((OUT / "unknown-words.json").read_text("utf-8"))
    scores = [facts["dev"]["dev"][facts["metric"]] for name, facts in record["facts"].items() if "rules/" in name]
    n_seeds = min(len(score["values"]) for score in scores)
    lines = [
        "## Unknown words\n",
        "```\nfirth study unknown-words --data ../shared/data --out runs/unknown-words\n```\n",
        "Named entities of CoNLL-2003, by the rule for words outside the vocabulary: a BiLSTM with a CRF on frozen "
        f"word vectors, {unknown_words.MOST_EXAMPLES:,} training sentences, {n_seeds} seeds. On "
        f"{machine_of(record)}, torch "
        f"{record['torch']}, commit {record['commit']}.\n",
        *markdown(*rule_table(record["facts"])),
        "",
        *record["remarks"].get("text", []),
        "",
    ]
    return "\n".join(lines)


def senses_section() -> str:
    record: dict[str, Any] = json.loads((OUT / "senses.json").read_text("utf-8"))
    facts, rules = record["facts"], SenseRules()
    counts = facts["occurrences"]["counts"]
    lines = [
        "## One word, several vectors\n",
        "```\nfirth study senses --data ../shared/data --models models --out runs/senses\n```\n",
        f"{2 * sum(counts.values()):,} occurrences of {len(counts)} ambiguous words in Wikipedia: two senses per "
        "word, equally many occurrences of each, one occurrence per article. Cue words in the article's "
        f"other sentences label the sense. Each occurrence is classified by the {rules.neighbours} nearest occurrences "
        "of the same word, by cosine similarity. "
        f"{record['hours'] * 60:.0f} minutes beside other work, on {machine_of(record)}, torch {record['torch']}, "
        f"commit {record['commit']}.\n",
        *record["remarks"].get("labels", []),
        "",
        "Accuracy in percent, mean over words. The 95 % intervals come from a bootstrap over words; gains are paired "
        "differences from the mean word vector of the sentence (which excludes the word itself, as TF-IDF does).\n",
        *markdown(*accuracy_table(facts)),
        "",
        *record["remarks"].get("text", []),
        "\n![occurrences of bank and plant](results/senses.png)\n",
        "The first two principal components of each occurrence's vector. The lettered occurrences are those nearest to "
        "the centre of their sense and those farthest from it.\n",
        "By word:\n",
        *markdown(*word_table(facts)),
        "",
    ]
    return "\n".join(lines)


def domain_section() -> str:
    record: dict[str, Any] = json.loads((OUT / "domain.json").read_text("utf-8"))
    extended, first, last = record["extend"], record["evaluations"][0], record["evaluations"][-1]
    # The record is older than the key "tokens".
    fits = [{"tokens": fit.get("pieces"), **fit} for fit in map(extended["held_out"].get, ("before", "after"))]
    scores = {name: facts["dev"]["dev"][facts["metric"]] for name, facts in record["tuned"].items()}
    n_new = extended["size_after"] - extended["size_before"]
    n_labelled = sum(record["tuned"]["after"]["examples"][part] for part in ("train", "held_out"))
    rows = [
        [what, f"{before:{form}}", f"{after:{form}}"]
        for what, form, before, after in (
            ("tokens per word, held-out reviews", ".2f", *(fit["tokens"] / fit["words"] for fit in fits)),
            ("words that are [UNK]", ".2%", *(fit["unknown"] / fit["words"] for fit in fits)),
            ("masked-LM loss per token, extended vocabulary", ".2f", first["mlm_loss"], last["mlm_loss"]),
            ("masked-LM accuracy", ".1%", first["mlm_accuracy"], last["mlm_accuracy"]),
        )
    ]
    rows.append(
        [
            "fine-tuned on NSMC, accuracy, %",
            *(f"{100 * score['mean']:.1f} ± {100 * score['sd']:.1f}" for score in scores.values()),
        ]
    )
    lines = [
        "## Continued pre-training on a domain\n",
        "```\nscripts/domain runs/domain\n```\n",
        *earlier(record),
        f"A Korean mini BERT was pre-trained for six minutes on an encyclopedia; its pre-training then continued on "
        f"100,000 film reviews, with {n_new:,} new tokens, for {last['step']:,} steps. Fine-tuning: {n_labelled:,} "
        f"labelled reviews, three seeds. On {machine_of(record)}, torch {record['torch']}, commit "
        f"{record['commit']}.\n",
        *markdown(["", "before", "after"], rows),
        "\nBoth losses use the extended vocabulary: before the continued pre-training, a new token's embedding is only "
        "the mean of the embeddings of the tokens that it replaces.\n",
    ]
    return "\n".join(lines)


def markdown(header: list[str], rows: list[list[Any]]) -> list[str]:
    cells = [header, ["---"] * len(header), *rows]
    return ["| " + " | ".join("" if cell is None else str(cell) for cell in row) + " |" for row in cells]


if __name__ == "__main__":
    sections = [
        run_section("The shipped English model, firth-mini-en", "firth-mini-en", superseded=True),
        run_section("Its second run: longer sequences and lower case", "firth-mini-en-long", superseded=True),
        run_section("Its third run, of short sequences", "firth-mini-en-third", superseded=True),
        run_section("Its fourth run, on a GPU", "firth-mini-en-fourth"),
        run_section("The shipped Korean model, firth-mini-ko", "firth-mini-ko", superseded=True),
        run_section("Its second run: longer sequences, in Korean", "firth-mini-ko-long", superseded=True),
        run_section("Its third run, in Korean", "firth-mini-ko-third", superseded=True),
        run_section("Its fourth run, in Korean, on a GPU", "firth-mini-ko-fourth"),
        run_section("A larger English model: 8 layers of 512", "bert-medium-en"),
        demo_section(),
        study_section(),
    ]
    later = {
        "learning": learning_section,
        "domain": domain_section,
        "directionality": directionality_section,
        "translation": translation_section,
        "representations": representations_section,
        "ablations": ablations_section,
        "unknown-words": unknown_words_section,
        "senses": senses_section,
    }
    sections += [section() for name, section in later.items() if (OUT / f"{name}.json").is_file()]
    Path("docs/results.md").write_text("\n".join([HEAD, *sections]), "utf-8")
    for name in SHIPPED:
        card = WEIGHTS / name / "README.md"
        card.write_text(renewed(name, card.read_text("utf-8")), "utf-8")
