"""Write the data card of a corpus, ``README.md``: its sources, what was removed and why.

Like the shards, it depends only on the text and the options: no dates, no machine, no number of workers.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from firth.corpus.clean import REASONS, Cleaning
from firth.corpus.contamination import Found
from firth.corpus.fingerprints import SCRIPTS
from firth.corpus.selection import FileTally, Removed, matching_files
from firth.corpus.survey import Verdict
from firth.data.shards import ShardInfo, SourceFile
from firth.errors import ConfigError

NAME = "README.md"
_LEAST_SHARE = 0.001  # smallest share of the letters for which a script is listed


@dataclass(frozen=True, kw_only=True, slots=True)
class CorpusFacts:
    """The contents of a data card."""

    sources: Sequence[SourceFile]
    train: Sequence[ShardInfo]
    dev: Sequence[ShardInfo]
    files: Sequence[FileTally]
    weights: Sequence[float]
    licences: Sequence[str]
    lowercase: float
    lines: str
    tokenizer: str
    hold_out: float
    cleaning: Cleaning
    verdict: Verdict | None
    removed: Mapping[str, Removed]


def licences_of(files: Sequence[Path], given: Mapping[str, str]) -> list[str]:
    """The licence of each file, from the last pattern that matches it. ConfigError for a pattern without a match."""
    licences = [""] * len(files)
    for pattern, licence in given.items():
        matching = matching_files(files, pattern)
        if not matching:
            raise ConfigError(f"--licence {pattern}={licence}: none of the text files has such a path or name")
        for number in matching:
            licences[number] = licence
    return licences


def write_card(made: CorpusFacts) -> str:
    """Format the card as Markdown."""
    parts = [_head(made), _sources(made)]
    if made.verdict is not None:
        parts += [_scripts(made), _removed(made), _found(made.verdict.found, made.cleaning.remove_overlap)]
    return "\n\n".join(part for part in parts if part) + "\n"


def _head(made: CorpusFacts) -> str:
    rows = [
        ("training", *_sums(made.train)),
        ("held out", *_sums(made.dev)),
    ]
    unit = "pairs of lines" if made.lines == "pair" else "documents"
    held = (
        f"{made.hold_out:.2%} of the {unit} are held out, ten at least where there are a hundred, chosen by a hash of "
        "their text."
        if made.hold_out
        else "The files marked (held out) are the held-out text."
        if made.dev
        else "Nothing is held out."
    )
    cleaned = (
        "Cleaned: what was removed is listed below."
        if made.removed
        else "Nothing was removed."
        if made.verdict is not None
        else "Not cleaned: no document was removed or compared with another."
    )
    lowered = f" {made.lowercase:.0%} of the training documents are lower-cased." if made.lowercase else ""
    return (
        "# Corpus\n\n"
        f"Token ids for pre-training, built by `firth prepare`. {held} {cleaned}{lowered}\n\n"
        + _table(("part", unit, "sentences", "tokens"), rows)
        + f"\n\nTokenizer: `{made.tokenizer}`."
    )


def _sums(infos: Sequence[ShardInfo]) -> tuple[str, str, str]:
    return (
        f"{sum(info.documents for info in infos):,}",
        f"{sum(info.sentences for info in infos):,}",
        f"{sum(info.tokens for info in infos):,}",
    )


def _sources(made: CorpusFacts) -> str:
    rows = []
    train = [source for source in made.sources if source.split == "train"]
    for source, tally, weight, licence in zip(train, made.files, made.weights, made.licences, strict=True):
        copies = f"{tally.copies:,}" if tally.copies else ""
        rows.append(
            (
                f"`{Path(source.path).name}`",
                licence or "not stated",
                f"{source.bytes:,}",
                f"`{source.sha256[:16]}`",
                f"{tally.documents:,}",
                f"{tally.characters:,}",
                f"{weight:g}",
                copies,
            )
        )
    for source in made.sources:
        if source.split == "dev":
            rows.append(
                (
                    f"`{Path(source.path).name}` (held out)",
                    "",
                    f"{source.bytes:,}",
                    f"`{source.sha256[:16]}`",
                    "",
                    "",
                    "",
                    "",
                )
            )
    header = ("file", "licence", "bytes", "sha256", "documents", "characters", "weight", "copies")
    return (
        "## Sources\n\n"
        "Documents and characters are those in the corpus, including held-out ones, before copies; bytes are those on "
        "disk. `manifest.json` has the paths and the full checksums.\n\n" + _table(header, rows)
    )


def _scripts(made: CorpusFacts) -> str:
    assert made.verdict is not None
    train = [source for source in made.sources if source.split == "train"]
    rows = []
    for source, count in zip(train, made.verdict.files, strict=True):
        letters = max(sum(count.scripts), 1)
        shares = sorted(((n / letters, name) for n, name in zip(count.scripts, SCRIPTS, strict=True)), reverse=True)
        said = ", ".join(f"{name} {share:.1%}" for share, name in shares if share >= _LEAST_SHARE)
        name = f"`{Path(source.path).name}`"
        rows.append((name, f"{count.documents:,}", f"{count.characters:,}", said or "no letters"))
    return "## Text as it was read\n\n" + _table(("file", "documents", "characters", "letters by script"), rows)


def _removed(made: CorpusFacts) -> str:
    cleaning = made.cleaning
    if not (cleaning.rules or cleaning.scripts or cleaning.languages or cleaning.remove_overlap):
        return ""
    asked = [f"rules: {', '.join(cleaning.rules) or 'none'}"]
    if "near-duplicates" in cleaning.rules:
        asked.append(f"near-duplicates from similarity {cleaning.similarity:g} on")
    if cleaning.scripts:
        asked.append(f"scripts: {', '.join(cleaning.scripts)}")
    if cleaning.languages:
        asked.append(f"languages: {', '.join(cleaning.languages)}")
    assert made.verdict is not None
    read = max(sum(file.characters for file in made.verdict.files), 1)
    rows = [
        (
            name,
            what,
            f"{row.documents:,}" if row.documents else "",
            f"{row.paragraphs:,}" if row.paragraphs else "",
            f"{row.characters:,}",
            f"{row.characters / read:.2%}",
        )
        for name, what in REASONS.items()
        if (row := made.removed.get(name))
    ]
    parts = [f"## Removed\n\nOptions: {'; '.join(asked)}."]
    if not rows:
        return parts[0] + " Nothing was removed."
    parts.append(_table(("reason", "what", "documents", "paragraphs", "characters", "of the text"), rows))
    for name in REASONS:
        if row := made.removed.get(name):
            parts.append(f"First examples of *{name}*:\n\n" + "\n".join(_example(*example) for example in row.examples))
    return "\n\n".join(parts)


def _example(where: str, text: str, like: str) -> str:
    return f"- {_code(_place(where))}: {_code(text)}" + (f" — like {_code(like)}" if like else "")


def _found(found: Sequence[Found], remove: bool) -> str:
    if not found:
        return ""
    rows = [
        (
            f"`{Path(file.file).name}`",
            f"{file.n}",
            f"{file.examples:,}",
            f"{file.short:,}",
            f"{file.found:,}",
            f"{file.found / max(file.examples - file.short, 1):.2%}",
        )
        for file in found
    ]
    done = "The paragraphs with matches were removed." if remove else "Nothing was removed."
    quotes = [
        f"- `{Path(file.file).name}` in {_code(_place(where))}: {_code(text[:200])}"
        for file in found
        for text, where in file.quotes
    ]
    return (
        "## Evaluation texts\n\n"
        "An example is found if it shares a run of words with the corpus; runs that occur in more than ten places "
        f"are common phrases and do not count. {done}\n\n"
        + _table(("file", "words of a run", "examples", "too short", "found", "share of those compared"), rows)
        + ("\n\n" + "\n".join(quotes) if quotes else "")
    )


def _place(where: str) -> str:
    """File name and line, without local folders."""
    return where.rpartition("/")[2]


def _code(text: str) -> str:
    """Format any text as inline code."""
    return "`" + " ".join(text.replace("`", "'").split()) + "`"


def _table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [header, ["---"] * len(header), *rows]
    escaped = ([cell.replace("|", "\\|").replace("\n", " ") for cell in row] for row in lines)
    return "\n".join("| " + " | ".join(row) + " |" for row in escaped)
