"""Learning rates by depth: discriminative fine-tuning."""

from firth.data.batch import Objective


def layer_scales(objective: Objective, decay: float, *, below: int) -> dict[str, float]:
    """Scale of the learning rate of each of the encoder's parameters, by name: ``decay`` to the power of its depth.

    The top group of layers is ``below`` groups deep, the next one group deeper.
    Source: Howard & Ruder 2018, §3.2, applied to any encoder's groups.
    """
    groups = objective.encoder.layer_groups()
    depth = {id(p): len(groups) - 1 - n + below for n, group in enumerate(groups) for p in group}
    return {name: decay ** depth[id(p)] for name, p in objective.named_parameters() if id(p) in depth}
