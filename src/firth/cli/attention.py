"""``firth attention``."""

from dataclasses import asdict
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from firth.cli.shared import JsonFlag, Precision, check_text, load_model, print_json
from firth.errors import ConfigError


def attention(
    model: Annotated[Path, Parameter(name="MODEL")],
    text: Annotated[str, Parameter(name="TEXT")],
    /,
    *,
    second: str | None = None,
    out: Path | None = None,
    precision: Precision = "float32",
    as_json: JsonFlag = False,
) -> None:
    """Show what the heads of a Transformer look at in a text.

    Example: firth attention runs/a "The capital of France is Paris." --out attention.png

    Parameters
    ----------
    model
        The folder of a run or of a model, also of another tool, or hub:org/name.
    text
        A text no longer than the model reads.
    second
        A second text, to be read with the first as a pair.
    out
        A new .png file: a heat map for each head of each layer.
    precision
        What the encoder computes in; auto is bfloat16 where the machine multiplies in it.
    as_json
        Print pieces and weights (layers, heads, pieces, pieces) instead, as one JSON object.
    """
    if out is None and not as_json:
        raise ConfigError("--out is missing: give a new file for the picture, such as --out attention.png, or --json")
    if out is not None and as_json:
        raise ConfigError("--json prints numbers instead of the picture: leave out --out, or --json")
    if out is not None and (out.suffix.lower() != ".png" or out.exists() or not out.parent.is_dir()):
        raise ConfigError(f"--out {out}: expected the name of a new .png file in a folder that is there")
    for given, where in ((text, "TEXT"), (second or "", "--second")):
        check_text(given, where)
    found = load_model(model, precision).attention(text, second)
    if out is None:
        print_json(asdict(found) | {"weights": found.weights.tolist()})
        return
    from firth.explain.attention import write_attention_picture

    write_attention_picture(found, out)
    n_layers, n_heads, n_pieces, _ = found.weights.shape
    print(f"{out}: {n_layers} layers with {n_heads} heads each over {n_pieces} pieces")
