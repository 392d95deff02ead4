"""``firth explain``."""

from pathlib import Path
from typing import Annotated, Literal

from cyclopts import Parameter

from firth.cli.shared import Others, check_text, load_and_say
from firth.errors import UsageError
from firth.files import check_new_file
from firth.inference.precision import Precision


def explain(
    model: Annotated[Path, Parameter(name="MODEL")],
    /,
    *texts: Annotated[str, Parameter(name="TEXT", required=True)],
    out: Path,
    word: str | None = None,
    others: Others = None,
    language: Literal["en", "ko"] = "en",
    precision: Precision = "float32",
) -> None:
    """Show how a model processes a text, as one offline HTML page.

    Tokens and how WordPiece finds them, the embeddings that are added, the masks of a batch, next-sentence pairs, each
    token's probability, a word in several contexts, and every attention head: whatever the model supports.

    Example: firth explain runs/a "He sat on the bank." "The bank lent money." --out bank.html

    Parameters
    ----------
    model
        Run or model folder, also of another tool, or hub:org/name.
    texts
        One or more texts; a word that occurs in several is compared between them.
    out
        Output .html file, must be new.
    word
        The word to compare in its contexts; default: the longest one that occurs twice.
    others
        Further models in which the word's vectors are compared, such as word vectors; repeatable.
    language
        Language of the page: English or Korean.
    precision
        dtype of the encoder; auto is bfloat16 where the hardware supports it, else float16 weights.
    """
    check_new_file(out)
    if out.suffix.lower() not in (".html", ".htm"):
        raise UsageError(f"--out {out}: expected the name of a new .html file")
    for text in (*texts, word or ""):
        check_text(text, "TEXT")
    loaded = load_and_say(model, precision)
    from firth.explain.text import explain as write_page

    named = [(str(other), load_and_say(other, precision)) for other in others or ()]
    found = write_page(loaded, texts, out, word=word, language=language, name=str(model), others=named)
    print(f"{out}: {', '.join(found)}")
