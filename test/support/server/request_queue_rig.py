# SPDX-License-Identifier: Apache-2.0
"""Requests without content, and an inference thread; for the tests of mailbox and schedulers."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
import threading

from lerobot_serve.contract.data_path.header import Header
from lerobot_serve.contract.schema import MsgType
from lerobot_serve.server.inference.request_queue import QueuedRequest, RequestQueue
from lerobot_serve.server.sessions.session_table import Session
from support.contract.session_request import session_request
from support.server.fake_policy import JOINTS

WAIT_S = 10.0


def session(name: str) -> Session:
    ask = session_request(name, 1, '/reply', JOINTS)
    return Session(ask, f'{name}#1', 1, '', ())


def queued(
    name: str, seq: int = 0, *, at: int = 0, dry: int = 0, episode: int = 1
) -> QueuedRequest:
    """Return the request `seq` of a robot, come at `at`, whose actions end at `dry` [ns]."""
    header = Header(seq, 0, 1, episode, 1, MsgType.OBSERVATION)
    return QueuedRequest(session(name), b'', header, at, dry)


def name_of(taken: QueuedRequest) -> str:
    return taken.session.request.client_id


def take_all(request_queue: RequestQueue) -> list[tuple[str, int]]:
    """Take everything without waiting; return whose it was and its number."""
    taken = []
    while len(request_queue):
        taken += [(name_of(one), one.header.seq) for one in request_queue.take_batch()]
    return taken


@contextmanager
def thread(work: Callable[[], object]) -> Iterator[threading.Thread]:
    """Run `work` beside the test and see it end."""
    beside = threading.Thread(target=work)
    beside.start()
    try:
        yield beside
    finally:
        beside.join(WAIT_S)
        assert not beside.is_alive()


@contextmanager
def inference(
    request_queue: RequestQueue, answer: Callable[[list[QueuedRequest]], object] = list
) -> Iterator[None]:
    """Take and answer in a thread of its own until the end."""

    def run() -> None:
        while batch := request_queue.take_batch():
            answer(batch)

    with thread(run):
        try:
            yield
        finally:
            request_queue.close()
