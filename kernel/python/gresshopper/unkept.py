"""Answers for the state of a kernel whose state can't be kept: each request is refused with the reason."""

from __future__ import annotations

import contextlib
from typing import NoReturn

from gresshopper import operations
from gresshopper.channel import Channel, ChannelClosed
from gresshopper.operations import Call, OperationError


def serve(channel: Channel, why: str) -> None:
    """Begin to refuse."""

    def refuse(call: Call) -> NoReturn:
        raise OperationError("refused", f"this kernel's variables aren't saved: {why}")

    for name in ("begin", "restore", "apply", "flush", "forget"):
        operations.register(f"state.{name}", refuse)
    with contextlib.suppress(ChannelClosed):  # nobody asks, then
        channel.open()
