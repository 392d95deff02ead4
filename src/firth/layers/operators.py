"""Operators of our own in PyTorch's table, defined without ``torch.library.custom_op``.

The first call of a ``custom_op`` imports PyTorch's compiler: a second of processor time, and an empty folder among
the temporary files. What is defined piece by piece needs the compiler only where something is compiled.
"""

from collections.abc import Callable
from typing import Any

import torch

_TAGS = (torch.Tag.pt2_compliant_tag,)


def operator(name: str) -> Callable[[Callable[..., Any]], Any]:
    """Make an operator ``namespace::name`` of a function that changes none of its arguments, on every device.

    Its schema follows from the annotations. What shapes it gives, and its gradient, are said by
    ``torch.library.register_fake`` and ``register_autograd``.
    """

    def define(function: Callable[..., Any]) -> Any:
        torch.library.define(name, torch.library.infer_schema(function, mutates_args=()), tags=_TAGS)
        torch.library.impl(name, "CompositeExplicitAutograd")(function)
        namespace, _, short = name.partition("::")
        return getattr(getattr(torch.ops, namespace), short).default

    return define
