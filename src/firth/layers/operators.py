"""Operators of our own in PyTorch's table, defined without ``torch.library.custom_op``.

The first call of a ``custom_op`` imports PyTorch's compiler: a second of processor time, and an empty folder among
the temporary files. What is defined piece by piece needs the compiler only where something is compiled.
"""

from collections.abc import Callable
from typing import Any, TypeVar

import torch

F = TypeVar("F", bound=Callable[..., Any])

_TAGS = (torch.Tag.pt2_compliant_tag,)


def operator(name: str) -> Callable[[Callable[..., Any]], Any]:
    """Make an operator ``namespace::name`` of a function that changes none of its arguments, on every device.

    Its schema follows from the annotations. Its shapes are said by ``shapes_of``, its gradient by
    ``torch.library.register_autograd``.
    """

    def define(function: Callable[..., Any]) -> Any:
        torch.library.define(name, torch.library.infer_schema(function, mutates_args=()), tags=_TAGS)
        torch.library.impl(name, "CompositeExplicitAutograd")(function)
        namespace, _, short = name.partition("::")
        return getattr(getattr(torch.ops, namespace), short).default

    return define


def shapes_of(op: Any) -> Callable[[F], F]:
    """Say what an operator gives, without values, of arguments that have none: for what is compiled."""

    def register(function: F) -> F:
        torch.library.register_fake(op, function)
        return function

    return register
