# SPDX-License-Identifier: Apache-2.0
"""RecordedEpisode.msg as a value, from CDR bytes and to them. Pure; any thread."""

from __future__ import annotations

from dataclasses import asdict, dataclass
import re

from lerobot_serve.contract import records
from lerobot_serve.contract.codec import decode, encode
from lerobot_serve.contract.errors import Malformed
from lerobot_serve.contract.limits import FINGERPRINT_LIMIT, ID_LIMIT
from lerobot_serve.contract.types import Constants, Time

RECORDED_TYPE = 'lerobot_serve_interfaces/msg/RecordedEpisode'
# the number of each in the message is its place; the first one: no outcome was reported
OUTCOMES = ('', 'success', 'failure', 'aborted')
POLICIES_LIMIT, HOST_LIMIT, PATH_LIMIT, SHA256_LIMIT = 16, 256, 4096, 64
SHA256 = re.compile('[0-9a-f]{64}')
SECOND_NS = 10**9
# the range of builtin_interfaces/Time without times before 1970
LAST_NS = (1 << 31) * SECOND_NS - 1


@dataclass(frozen=True, slots=True)
class RecordedEpisode:
    """
    RecordedEpisode.msg: an episode whose bag is whole on a disk; `stamp_ns` is by the clock of the
    recorder, an empty `outcome`: none was reported. Raises ValueError for a value that no message
    can have.
    """

    stamp_ns: int
    client_id: str
    episode_id: str
    outcome: str
    control_steps: int
    control_steps_person: int
    policies: tuple[str, ...]
    host: str
    path: str
    size_bytes: int
    sha256: str

    def __post_init__(self) -> None:
        if self.outcome not in OUTCOMES:
            raise ValueError(f'outcome must be one of {OUTCOMES}, got {self.outcome!r:.40}')
        if not SHA256.fullmatch(self.sha256):
            raise ValueError(f'sha256 must have 64 digits in 0-9a-f, got {self.sha256!r:.80}')
        if len(self.policies) > POLICIES_LIMIT:
            raise ValueError(f'at most {POLICIES_LIMIT} policies, got {len(self.policies)}')
        _check_range('stamp_ns', self.stamp_ns, LAST_NS)
        _check_range('control_steps', self.control_steps, (1 << 32) - 1)
        _check_range('control_steps_person', self.control_steps_person, self.control_steps)
        _check_range('size_bytes', self.size_bytes, (1 << 64) - 1)
        _check_text('client_id', self.client_id, ID_LIMIT)
        _check_text('episode_id', self.episode_id, ID_LIMIT)
        for policy in self.policies:
            _check_text('a policy', policy, FINGERPRINT_LIMIT)
        _check_text('host', self.host, HOST_LIMIT)
        _check_text('path', self.path, PATH_LIMIT)


def _check_range(name: str, value: int, last: int) -> None:
    if not 0 <= value <= last:
        raise ValueError(f'{name} must be in [0, {last}], got {value}')


def _check_text(name: str, text: str, limit: int) -> None:
    try:
        size = len(text.encode())
    except UnicodeEncodeError:
        raise ValueError(f'{name} must be UTF-8, got {text!r:.40}') from None
    if size > limit or '\0' in text:
        raise ValueError(
            f'{name} must have at most {limit} bytes without NUL, got {size}: {text!r:.40}'
        )


def word_of(outcome: Constants) -> str:
    """Return an outcome in one word; empty for none, as in files."""
    return outcome.word if outcome else ''


def decode_recorded(raw: bytes) -> RecordedEpisode:
    """Return the value of CDR bytes. Raises Malformed."""
    message = decode(records.RecordedEpisode, raw)
    fields = {
        name: getattr(message, name) for name in message.__struct_fields__ if name != 'stamp'
    }
    try:
        return RecordedEpisode(message.stamp.ns, **fields | {'outcome': word_of(message.outcome)})
    except ValueError as error:
        raise Malformed('recorded_episode', str(error)) from None


def encode_recorded(episode: RecordedEpisode) -> bytes:
    """Return the CDR bytes of a value."""
    fields = asdict(episode)
    stamp, outcome = Time.of_ns(fields.pop('stamp_ns')), OUTCOMES.index(fields.pop('outcome'))
    kind = records.RecordedEpisode
    return encode(kind(stamp, outcome=kind.Outcome(outcome), **fields))
