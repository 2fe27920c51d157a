# SPDX-License-Identifier: Apache-2.0
"""Zenoh with shared memory and this package's settings: one message there, one back."""

from __future__ import annotations

from collections.abc import Sequence
from queue import SimpleQueue
import threading

import numpy as np

from benchmarks.peers.floors import floor
from benchmarks.peers.floors.floor import ANSWER_S, Ask, REPLY
from benchmarks.peers.peer_process import Address
from benchmarks.peers.zenoh_end import endpoint, ZenohEnd
from lerobot_serve.zenoh.settings import configuration, ZenohSettings

ASKED, REPLIED = 'floor/asked', 'floor/replied'


def serve(address: Address) -> None:
    """Serve until a signal."""
    settings = configuration(ZenohSettings(listen=(endpoint(address),)))
    end = ZenohEnd(settings, ASKED, REPLIED, lambda raw: end.put(REPLY))
    threading.Event().wait()


def connect(address: Address) -> Ask:
    """Return what asks once."""
    replies: SimpleQueue[bytes] = SimpleQueue()
    settings = configuration(ZenohSettings(connect=(endpoint(address),)))
    end = ZenohEnd(settings, REPLIED, ASKED, replies.put)
    end.wait_until_heard()

    def ask(pictures: Sequence[np.ndarray]) -> int:
        end.put(b''.join(pictures))
        return len(replies.get(timeout=ANSWER_S))

    return ask


if __name__ == '__main__':
    raise SystemExit(floor.main(serve, connect))
