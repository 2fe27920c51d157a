# SPDX-License-Identifier: Apache-2.0
"""Shows a bag from its first to its last message. The main thread."""

from __future__ import annotations

from collections.abc import Callable

from lerobot_serve.tools.bags.reader import Bag
from lerobot_serve.tools.rerun_view.message_view import MessageView


def show_bag(bag: Bag, view: MessageView, is_stopped: Callable[[], bool]) -> bool:
    """
    Show a bag until its end or until `is_stopped`, and end the view; return whether it was the
    end. Raises BagError, OSError.
    """
    is_whole = True
    try:
        for message in bag.read():
            if is_stopped():
                is_whole = False
                break
            view.add(message)
    except BaseException:
        view.abort()
        raise
    view.close()
    return is_whole
