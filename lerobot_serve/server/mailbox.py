"""The newest request of each client and nothing older, handed out in the order of arrival."""

from __future__ import annotations

from dataclasses import dataclass
import threading

from lerobot_serve.server.sessions import Session
from lerobot_serve.wire.header import peek


@dataclass(frozen=True, slots=True)
class Mail:
    """One request as it arrived."""

    session: Session
    raw: bytes
    arrived_ns: int
    superseded: int


class Mailbox:
    """The executor thread puts, the worker takes; `close` lets the worker go."""

    def __init__(self) -> None:
        self._ready = threading.Condition()
        self._mail: dict[str, Mail] = {}
        self._superseded: dict[str, int] = {}
        self._closed = False

    def put(self, session: Session, raw: bytes, arrived_ns: int) -> bool:
        """
        Deposit a request; return True when it took the place of an older one.

        The client keeps the older one's place in the line, so that asking often gains nothing.
        """
        name = session.ask.client_id
        with self._ready:
            replaced = name in self._mail
            if replaced:
                self._superseded[name] = self._superseded.get(name, 0) + 1
            count = self._superseded.get(name, 0)
            self._mail[name] = Mail(session, raw, arrived_ns, count)
            self._ready.notify()
            return replaced

    def take(self) -> Mail | None:
        """Wait for the oldest request and return it; None when closed."""
        with self._ready:
            self._ready.wait_for(lambda: self._mail or self._closed)
            if self._closed:
                return None
            return self._mail.pop(next(iter(self._mail)))

    def forget(self, client_id: str) -> bool:
        """
        Drop what is left of a client whose session or episode ended; return True when a request
        was waiting, so that it can be counted.
        """
        with self._ready:
            self._superseded.pop(client_id, None)
            return self._mail.pop(client_id, None) is not None

    def forget_episodes_before(self, client_id: str, episode: int) -> bool:
        """
        Drop a waiting request of an episode that has ended; return True when there was one.

        The first request of the new episode may come before the word that it has begun.
        """
        with self._ready:
            mail = self._mail.get(client_id)
            if mail is None or peek(mail.raw).header.episode >= episode:
                return False
            del self._mail[client_id]
            return True

    def close(self) -> None:
        with self._ready:
            self._closed = True
            self._ready.notify_all()

    def __len__(self) -> int:
        return len(self._mail)
