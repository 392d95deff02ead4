"""The verbs as one application."""

import importlib.metadata
from collections.abc import Callable, Sequence

from cyclopts import App, CycloptsError, MissingArgumentError, Parameter

from firth.cli.demo import demo
from firth.cli.embed import embed
from firth.cli.fill_mask import fill_mask
from firth.cli.prepare import prepare
from firth.cli.pretrain import pretrain
from firth.cli.vocab import vocab
from firth.errors import UsageError

app = App(
    name="firth",
    help="Pre-train BERT and its predecessors on your own text, and use them, on the machine you have.",
    help_format="plaintext",
    version=lambda: importlib.metadata.version("firth"),
    result_action="return_value",
    exit_on_error=False,
    print_error=False,
    suppress_keyboard_interrupt=False,
    default_parameter=Parameter(negative=""),
)
_VERBS: tuple[Callable[..., int | None], ...] = (demo, vocab, prepare, pretrain, fill_mask, embed)  # as the road goes
for _number, _verb in enumerate(_VERBS):
    app.command(_verb, sort_key=_number)


def run(tokens: Sequence[str]) -> int:
    """Run the verb that ``tokens`` name and return its exit code; UsageError if they make no command."""
    try:
        return app(list(tokens)) or 0
    except CycloptsError as error:
        raise UsageError(_explained(error)) from None


def _explained(error: CycloptsError) -> str:
    verb = " ".join(("firth", *(error.command_chain or ())))
    if isinstance(error, MissingArgumentError) and error.argument is not None:
        message = f"{verb} needs a value for {error.keyword or error.argument.name}."
    else:
        message = str(error)
    return f"{message} See: {verb} --help"
