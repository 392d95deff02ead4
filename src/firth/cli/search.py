"""``firth search``."""

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter, validators

from firth.cli.shared import (
    JsonFlag,
    Whole,
    check_texts,
    counted,
    filled_lines,
    load_and_say,
    on_interrupt,
    print_json,
    print_next,
    say_unknown,
    texts_from,
)
from firth.errors import ConfigError, FirthError, InputError
from firth.inference.precision import Precision
from firth.tasks.config import Pool

if TYPE_CHECKING:
    from firth.inference.search import Hit


def search(
    index: Annotated[Path, Parameter(name="INDEX")],
    /,
    *queries: Annotated[str, Parameter(name="QUERY")],
    texts: Path | None = None,
    columns: str | None = None,
    model: Path | None = None,
    layer: Whole | None = None,
    pool: Pool | None = None,
    top_k: Annotated[Whole, Parameter(validator=validators.Number(gte=1))] = 5,
    precision: Precision = "float32",
    as_json: JsonFlag = False,
) -> None:
    """Find the texts nearest to a query: embed a file once, then search it by exact cosine.

    Example: firth search index/ --texts lines.txt --model runs/a

    Parameters
    ----------
    index
        Index folder: must be new with --texts, else must exist.
    queries
        Texts to search for; lines of stdin if none is given and nothing is built.
    texts
        File of texts to embed into a new index: the column of texts of a .csv, .tsv, .json or .jsonl, else each line.
    columns
        With --texts: which column of a table, or which key, has the texts, by name or number from 0: text=0.
    model
        The model that embeds the texts; default when searching: the one the index was made with.
    layer
        With --texts: layer, 0 is the embedding output, -1 the top (default).
    pool
        With --texts: pooling over the tokens of a text; default: the model's own, else mean.
    top_k
        Texts per query.
    precision
        dtype of the encoder; auto is bfloat16 where the hardware supports it, else float16 weights.
    as_json
        Print one JSON object per query.
    """
    check_texts(queries, reads="<")
    if texts is not None:
        _build(index, texts, columns, model, layer, pool, precision)
        if not queries:
            print_next("firth", "search", index, "a text")
            return
    elif layer is not None or pool is not None or columns is not None:
        raise ConfigError(
            "--layer, --pool and --columns are chosen when the index is built: give --texts as well, or leave them out"
        )
    from firth.inference.search import Index

    found = Index(index)
    try:
        loaded = load_and_say(model or Path(found.model), precision)
    except FirthError as error:
        if model is not None:
            raise
        raise ConfigError(f"the model of {index} is not found from here ({error}): give it with --model") from None
    found.check_model(loaded)
    n_queries = 0
    for query in queries or filled_lines():
        n_queries += 1
        say_unknown(query, loaded)
        _print(query, found.nearest(found.embed(loaded, query), top_k), as_json)
    if not n_queries:
        raise InputError("stdin: no queries: give texts to search for")


def _build(
    index: Path,
    texts: Path,
    columns: str | None,
    model: Path | None,
    layer: int | None,
    pool: Pool | None,
    precision: Precision,
) -> None:
    from firth.files import check_new, nearest
    from firth.inference.search import build_index

    if model is None:
        raise ConfigError("--model is missing: the model that embeds the texts, such as --model runs/a")
    check_new(index)
    if texts.is_dir():
        raise InputError(f"{texts} is a folder: give a file with one text a line")
    if not texts.exists():
        raise InputError(f"{texts}: no such file; {nearest(texts) or 'check the path'}")
    loaded = load_and_say(model, precision)
    with on_interrupt("no index was written"):
        n_texts = build_index(
            loaded, str(model), texts_from(texts, columns), index, layer=-1 if layer is None else layer, pool=pool
        )
    print(f"{index}: {counted(n_texts, 'text')}")


def _print(query: str, hits: "Iterable[Hit]", as_json: bool) -> None:
    if as_json:
        plain = [{"line": hit.line, "cosine": round(hit.cosine, 6), "text": hit.text} for hit in hits]
        print_json({"query": query, "hits": plain})
        return
    print(query)
    for hit in hits:
        print(f"  {hit.cosine:6.3f}  {hit.line:>6}  {hit.text}")
