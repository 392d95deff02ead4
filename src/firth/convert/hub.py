"""``hub:org/name``: a model from the Hugging Face Hub, through its own library (extra ``hub``) and its cache.

Files in the cache are not fetched again; with HF_HUB_OFFLINE=1 nothing is fetched at all.
"""

from pathlib import Path

from firth.errors import CheckpointError, ConfigError
from firth.names import HUB

_SMALL = ("*.json", "vocab.txt", "*/vocab.txt", "merges.txt")
_WEIGHTS = ("*.safetensors", "*.bin")
# The same weights in other formats, and files that are not part of a model.
_NEVER = ("onnx/*", "openvino/*", "coreml/*", "*.onnx", "*.h5", "*.msgpack", "training_args.bin", "optimizer.bin")


def fetch_model(name: str) -> Path:
    """Return the folder of ``hub:org/name``, or of a revision ``hub:org/name@revision``; fetch it if it is not cached.

    Weights are fetched as safetensors; as a torch pickle only if there is nothing else.
    """
    try:
        from huggingface_hub import snapshot_download
    except ImportError:
        raise ConfigError(f"{name} needs the extra hub: pip install 'firth[hub]', or give a folder") from None
    repository, _, revision = name.removeprefix(HUB).partition("@")
    for weights in _WEIGHTS:
        patterns = [*_SMALL, weights]
        try:
            found = snapshot_download(
                repository, revision=revision or None, allow_patterns=patterns, ignore_patterns=list(_NEVER)
            )
        except (OSError, ValueError) as error:  # the base classes of all that the library raises here
            raise CheckpointError(f"{name} could not be fetched: {_line(error)}") from None
        folder = Path(str(found))
        if any(folder.rglob(weights)):
            break
    return folder


def _line(error: Exception) -> str:
    """Return the first line of the library's message; the others are hints for programs."""
    return str(error).strip().split("\n")[0] or type(error).__name__
