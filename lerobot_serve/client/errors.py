# SPDX-License-Identifier: Apache-2.0
"""What a call of the client raises. Each text says what happened and what to do."""

from __future__ import annotations

from lerobot_serve.contract.schema import Refusal
from lerobot_serve.session.failover import TEMPORARY_REFUSALS


class PolicyClientError(Exception):
    """
    The base of all errors. `remedy` is the part of the text that says what to do, `may_retry`
    whether the same call may succeed later.
    """

    may_retry = False

    def __init__(self, text: str, remedy: str) -> None:
        super().__init__(f'{text}; {remedy}' if remedy else text)
        self.remedy = remedy


class WrongSettings(PolicyClientError):
    """An argument of `connect`, `open` or `begin_episode` is not allowed; nothing was sent."""


class WrongObservation(PolicyClientError):
    """State, images or task do not fit the session."""


class SessionRejected(PolicyClientError):
    """The server opens no session; `code` is the kind of refusal."""

    def __init__(self, code: Refusal, text: str, remedy: str = '') -> None:
        super().__init__(text, remedy)
        self.code = code
        self.may_retry = code in TEMPORARY_REFUSALS


class ServerUnavailable(PolicyClientError):
    """No server replies, or it has nobody that may answer."""

    may_retry = True


class Superseded(PolicyClientError):
    """A newer request of this session replaced this one, or its episode ended."""


class TooLate(PolicyClientError):
    """No reply within the timeout, or the server dropped the request as too late."""

    may_retry = True


class QuotaUsedUp(PolicyClientError):
    """The quota of this client or of its group is used up; `retry_after_s` says for how long."""

    may_retry = True

    def __init__(self, text: str, retry_after_s: float) -> None:
        super().__init__(text, f'send the next request in {retry_after_s:.3g} s')
        self.retry_after_s = retry_after_s


class NotFinite(PolicyClientError):
    """The policy produced NaN or infinity; there are no actions."""


class PolicyFailed(PolicyClientError):
    """The policy raised an error, or its reply cannot be used."""


class ClientClosed(PolicyClientError):
    """The client or session is closed."""


# a server that starts, ends or changes; it opens the session a moment later
TRANSIENT = (Refusal.NOT_READY, Refusal.UNREACHABLE, Refusal.DRAINING, Refusal.NAME_IN_USE)
