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
    """Plot the attention weights of each head for a text.

    Example: firth attention runs/a "The capital of France is Paris." --out attention.png

    Parameters
    ----------
    model
        Run or model folder, also of another tool, or hub:org/name.
    text
        Text, at most as long as the model's maximum length.
    second
        Second text of a pair.
    out
        Output .png file, must be new: a heat map per layer and head.
    precision
        dtype of the encoder; auto is bfloat16 where the hardware supports it.
    as_json
        Print tokens and weights (layers, heads, tokens, tokens) as one JSON object instead.
    """
    if out is None and not as_json:
        raise ConfigError("--out is missing: give a file for the plot, such as --out attention.png, or --json")
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
    print(f"{out}: {n_layers} layers with {n_heads} heads each over {n_pieces} tokens")
