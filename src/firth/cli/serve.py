"""``firth serve``."""

from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from firth.cli.shared import Flag, Whole
from firth.config import from_dict, override
from firth.errors import ConfigError
from firth.inference.precision import Precision


def serve(
    *models: Annotated[str, Parameter(name="NAME=PATH")],
    host: str = "127.0.0.1",
    port: Whole = 8080,
    key_file: Path | None = None,
    no_auth: Flag = False,
    allowed_host: list[str] | None = None,
    threshold: float = 0.0,
    accept_ids: Flag = False,
    precision: Precision = "float32",
    settings: Annotated[list[str] | None, Parameter(name="--set")] = None,
    check: Flag = False,
) -> None:
    """Serve models over HTTP: predictions, embeddings, masks, generation and translation.

    The protocols are those of text-embeddings-inference, OpenAI, Hugging Face and KServe v2.
    The first model is the default.

    Example: firth serve spam=runs/b --port 8080

    Parameters
    ----------
    models
        Fine-tuning, pre-training or model folders, each with a name; a path alone is named after its folder.
    host
        Address to listen on; any other than loopback requires keys, or --no-auth.
    port
        Port to listen on; 0 chooses a free one.
    key_file
        File of API keys, one per line, readable only by its owner; FIRTH_API_KEY may hold one more.
    no_auth
        Serve without keys, even on addresses that others can reach.
    allowed_host
        Host name that clients may use; repeatable. On loopback it is allowed besides the local names; elsewhere every
        name is allowed until one is given.
    threshold
        Classifiers answer null, with the score, if the best probability is lower.
    accept_ids
        Accept token ids in /v1/embeddings; they must be those of the model's own tokenizer.
    precision
        dtype of the encoders; auto is bfloat16 where the hardware supports it, else float16 weights. int8 must first
        pass the quality gate of firth evaluate, and computes each sequence separately.
    settings
        A limit, such as --set inputs=64; see the documentation of firth serve for all.
    check
        Check flags, port and models, let each model answer once, and exit.
    """
    try:
        from firth.serving import server
    except ModuleNotFoundError as error:
        raise ConfigError(f"firth serve needs {error.name}: pip install 'firth[serve]'") from None
    from firth.serving.access import make_access
    from firth.serving.config import Limits

    if not 0 <= port <= 65535:
        raise ConfigError(f"--port {port}: expected 0 to 65535")
    if not 0 <= threshold <= 1:
        raise ConfigError(f"--threshold {threshold}: expected 0 to 1")
    limits = from_dict(Limits, override({}, settings or []), "--set")
    served = server.Served(
        models=server.named_models(models),
        access=make_access(host, key_file, allowed_host or [], no_auth=no_auth),
        limits=limits,
        host=host,
        port=port,
        precision=precision,
        threshold=threshold,
        accept_ids=accept_ids,
    )
    if check:
        server.check_start(served)
        print("all models answer; nothing was started")
    else:
        server.serve(served)
