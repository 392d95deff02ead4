"""Initialise parameters."""

from torch import nn

from firth.packed import JOINT_PROJECTIONS


def normal_(module: nn.Module, std: float) -> None:
    """GPT's initialisation: matrices and embeddings from N(0, std²), biases 0, norms 1 and 0.

    Source: openai/finetune-transformer-lm train.py, model and conv1d (the paper's §4.1 says the same).
    """
    for part in module.modules():
        if isinstance(part, (nn.Linear, nn.Embedding)):
            nn.init.normal_(part.weight, std=std)
    _plain(module)


def truncated_normal_(module: nn.Module, std: float) -> None:
    """BERT's initialisation: matrices and embeddings from N(0, std²) truncated to ±2 std, biases 0, norms 1 and 0.

    Source: google-research/bert modeling.py, create_initializer. The resulting standard deviation is about 0.88 std.
    """
    for part in module.modules():
        if isinstance(part, (nn.Linear, nn.Embedding)):
            if std:
                nn.init.trunc_normal_(part.weight, std=std, a=-2 * std, b=2 * std)
            else:  # the library divides by it
                nn.init.zeros_(part.weight)
    _plain(module)


def _plain(module: nn.Module) -> None:
    """Set biases to 0, norms to 1 and 0."""
    for part in module.modules():
        if isinstance(part, nn.Linear) and part.bias is not None:
            nn.init.zeros_(part.bias)
        if isinstance(part, nn.LayerNorm):
            nn.init.ones_(part.weight)
            nn.init.zeros_(part.bias)


def uniform_(module: nn.Module, bound: float) -> None:
    """OpenNMT's initialisation: every parameter uniform in ± ``bound``, biases too."""
    for parameter in module.parameters():
        nn.init.uniform_(parameter, -bound, bound)


def xavier_(module: nn.Module) -> None:
    """The Transformer's initialisation: matrices Xavier-uniform, biases 0, norms 1 and 0.

    Each projection of a joint layer is initialised separately.

    Source: Glorot and Bengio 2010, eq. 16; as in harvardnlp/annotated-transformer.
    """
    for name, part in module.named_modules():
        if isinstance(part, nn.Linear):
            for matrix in part.weight.data.chunk(JOINT_PROJECTIONS.get(name.rpartition(".")[2], 1)):
                nn.init.xavier_uniform_(matrix)
    _plain(module)
