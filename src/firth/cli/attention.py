"""``firth attention``."""

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from cyclopts import Parameter

from firth.cli.shared import Flag, JsonFlag, check_text, counted, load_and_say, print_json, print_table
from firth.errors import ConfigError, UsageError
from firth.files import check_new_file
from firth.inference.precision import Precision

if TYPE_CHECKING:
    from firth.inference.attention_maps import Attention
    from firth.inference.model import Model

Average = Literal["heads", "layers", "all"]
Show = Literal["weights", "importance", "saturation"]
_AXES = ("layer", "head")


def attention(
    model: Annotated[Path, Parameter(name="MODEL")],
    text: Annotated[str, Parameter(name="TEXT")],
    /,
    *,
    second: str | None = None,
    cross: Flag = False,
    average: Average | None = None,
    show: Show = "weights",
    out: Path | None = None,
    precision: Precision = "float32",
    as_json: JsonFlag = False,
) -> None:
    """Plot the attention weights of each head for a text, or measure its heads.

    Example: firth attention runs/a "The capital of France is Paris." --out attention.svg

    Parameters
    ----------
    model
        Run or model folder, also of another tool, or hub:org/name.
    text
        Text, at most as long as the model's maximum length.
    second
        Second text of a pair; with --cross the translation of the text (default: the model's own).
    cross
        Cross-attention of a translation over its source, for translation models.
    average
        Average the weights over the heads of each layer, over layers, or over all.
    show
        weights; importance: what leaving out each head costs in log-probability per token; saturation: how sharp
        each layer's softmax is with and without the division by the square root of the head size.
    out
        Output .svg or .png file, must be new: a heat map per layer and head; other measures of --show only as .svg.
    precision
        dtype of the encoder; auto is bfloat16 where the hardware supports it, else float16 weights.
    as_json
        Print tokens and weights (layers, heads, tokens, tokens) as one JSON object instead.
    """
    if show != "weights":
        if average is not None or cross or (second is not None and show == "importance"):
            raise UsageError(f"--show {show} measures whole heads: leave out --average, --cross and --second")
        if out is not None and out.suffix.lower() == ".png":
            raise UsageError(f"--out {out}: --show {show} is drawn as .svg")
    elif out is None and not as_json:
        raise ConfigError("--out is missing: give a file for the plot, such as --out attention.png, or --json")
    if out is not None and as_json:
        raise ConfigError("--json prints numbers instead of the picture: leave out --out, or --json")
    if out is not None and (out.suffix.lower() not in (".png", ".svg") or not out.parent.is_dir()):
        raise ConfigError(f"--out {out}: expected the name of a new .png or .svg file in a folder that is there")
    if out is not None:
        check_new_file(out)
    for given, where in ((text, "TEXT"), (second or "", "--second")):
        check_text(given, where)
    loaded = load_and_say(model, precision)
    if show != "weights":
        _show_measures(loaded, text, second, show, out, as_json)
        return
    found = loaded.cross_attention(text, second) if cross else loaded.attention(text, second)
    if average is not None:
        found = found.mean(average)
    if out is None:
        plain = {"tokens": found.tokens, "weights": found.weights.tolist()}
        print_json(plain | ({"keys": found.keys} if cross else {}))
        return
    _write(found, out)
    n_layers, n_heads, n_tokens, _ = found.weights.shape
    layers = found.layers[0] if "layers" in found.averaged else counted(n_layers, "layer")
    heads = found.heads[0] if "heads" in found.averaged else f"{counted(n_heads, 'head')} each"
    print(f"{out}: {layers}, {heads}, over {counted(n_tokens, 'token')}")


def _write(found: "Attention", out: Path) -> None:
    if out.suffix.lower() == ".svg":
        from firth.explain.markup import attention_svg

        _write_svg(attention_svg(found), out)
        return
    from firth.explain.attention import write_attention_picture

    write_attention_picture(found, out)


def _write_svg(drawing: str, out: Path) -> None:
    from firth.explain.markup import standalone
    from firth.files import new_file

    with new_file(out) as file:
        file.write(standalone(drawing).encode())


def _show_measures(model: "Model", text: str, second: str | None, show: Show, out: Path | None, as_json: bool) -> None:
    if show == "importance":
        from firth.inference.attention_maps import attention_layers

        try:
            importance = model.head_importance([text])
        except ConfigError:
            if not attention_layers(model.loaded.objective.encoder):
                raise
            raise ConfigError(
                f"a model of system {model.loaded.system_name} for {model.loaded.task} predicts no tokens, by whose "
                "probability --show importance measures: give a pre-trained BERT or GPT, such as the one that this "
                "model was fine-tuned from"
            ) from None
        title = "lower log-probability per token without the head, in nats"
        layers, heads = ([f"{what} {n + 1}" for n in range(m)] for what, m in zip(_AXES, importance.shape, strict=True))
        if as_json:
            print_json({"text": text, "importance": importance.tolist()})
        elif out is not None:
            from firth.explain.heads import importance_map

            _write_svg(importance_map(importance, layers, heads, title), out)
            print(f"{out}: {title}")
        else:
            print(title)
            print_table(
                [(name, "  ".join(f"{x:+.4f}" for x in row)) for name, row in zip(layers, importance, strict=True)]
            )
        return
    sharp = model.saturation(text, second)
    title = "mean largest weight, and mean sum of w (1 - w), each with and without the division by the root of d"
    if as_json:
        print_json({"text": text, "layers": [asdict(layer) for layer in sharp]})
    elif out is not None:
        from firth.explain.heads import saturation_map
        from firth.explain.sentences import say_in

        _write_svg(saturation_map(sharp, title, say_in("en", "saturation_columns").split("|")), out)
        print(f"{out}: {title}")
    else:
        print(title)
        print_table(
            [
                (
                    f"layer {one.layer}",
                    f"{one.largest:.3f}  {one.largest_unscaled:.3f}   {one.slope:.3f}  {one.slope_unscaled:.3f}",
                )
                for one in sharp
            ]
        )
