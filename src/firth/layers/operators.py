"""Register custom PyTorch operators without ``torch.library.custom_op``.

The first call of a ``custom_op`` imports PyTorch's compiler: a second of CPU time, and an empty temporary
folder. Operators registered here need the compiler only when something is compiled.
"""

from collections.abc import Callable
from typing import Any, TypeVar

import torch

F = TypeVar("F", bound=Callable[..., Any])

_TAGS = (torch.Tag.pt2_compliant_tag,)


def operator(name: str) -> Callable[[Callable[..., Any]], Any]:
    """Register a function that mutates no argument as operator ``namespace::name``, on every device.

    The annotations define its schema, ``shapes_of`` its shapes, and ``torch.library.register_autograd``
    its gradient.
    """

    def define(function: Callable[..., Any]) -> Any:
        torch.library.define(name, torch.library.infer_schema(function, mutates_args=()), tags=_TAGS)
        torch.library.impl(name, "CompositeExplicitAutograd")(function)
        namespace, _, short = name.partition("::")
        return getattr(getattr(torch.ops, namespace), short).default

    return define


def shapes_of(op: Any) -> Callable[[F], F]:
    """Register an operator's shape function (meta kernel), which compilation needs."""

    def register(function: F) -> F:
        torch.library.register_fake(op, function)
        return function

    return register
