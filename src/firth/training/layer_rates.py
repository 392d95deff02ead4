"""Learning rates by layer depth (discriminative fine-tuning)."""

from firth.data.batch import Objective


def layer_scales(objective: Objective, decay: float, *, below: int) -> dict[str, float]:
    """The learning rate scale of each encoder parameter, by name: ``decay`` to the power of its depth.

    The top layer group has depth ``below``, the next one more.
    Source: Howard & Ruder 2018, §3.2, applied to any encoder's groups.
    """
    groups = objective.encoder.layer_groups()
    depth = {id(p): len(groups) - 1 - n + below for n, group in enumerate(groups) for p in group}
    return {name: decay ** depth[id(p)] for name, p in objective.named_parameters() if id(p) in depth}
