"""
Safe names from strings that users and peers supply.

A robot may be called "Lab 3/arm #2": that is fine on the wire and in a log, but not as part of a
ROS name or of a path. What had to be changed gets a short hash of the original, so that two names
never become one.
"""

from __future__ import annotations

import hashlib
import re

from lerobot_serve.wire.schema import ID_LIMIT

TOKEN = re.compile(r'[A-Za-z][A-Za-z0-9]*(_[A-Za-z0-9]+)*')
FILE = re.compile(r'[A-Za-z0-9][A-Za-z0-9._-]*')
TOPIC = re.compile(r'(/[A-Za-z_][A-Za-z0-9_]*)+')
LENGTH_LIMIT = 64
TOPIC_LIMIT = 240
# the last word, or the one before the last, of a topic that chunks are sent to
OWN_REPLY_TOPIC, RELAY_SEGMENT = re.compile(r'action_chunk(_[0-9]+)?'), 'answers'
REPLY_TOPIC_FORMS = '/.../action_chunk, or /.../answers/NAME for a relay'


def ros_token(text: str) -> str:
    """
    Return `text` as one token of a ROS name: letters, digits and single underscores, a letter
    first.
    """
    if TOKEN.fullmatch(text) and len(text) <= LENGTH_LIMIT:
        return text
    words = re.sub(r'[^A-Za-z0-9]+', '_', text).strip('_') or 'name'
    return _hashed(words if words[0].isalpha() else f'n_{words}', text, '_')


def session_name(client_id: str, session_epoch: int) -> str:
    """Return the name of a session in logs and traces, another one for each client and epoch."""
    epoch = f'#{session_epoch:08x}'
    if len(client_id.encode()) + len(epoch) <= ID_LIMIT:
        return client_id + epoch
    # two long names may begin alike; a short one cannot end like this
    mark = f'{epoch}~{hashlib.blake2s(client_id.encode(), digest_size=8).hexdigest()}'
    return client_id.encode()[: ID_LIMIT - len(mark)].decode(errors='ignore') + mark


def namespace(given: str, client_id: str | None) -> str:
    """Return the namespace of a robot's nodes; where none is given it is made of `client_id`."""
    return given or (ros_token(client_id) if client_id else '')


def file_name(text: str) -> str:
    """Return `text` as one safe file name: no separator, no leading dot, no reserved character."""
    if FILE.fullmatch(text) and len(text) <= LENGTH_LIMIT:
        return text
    words = re.sub(r'[^A-Za-z0-9._-]+', '_', text).strip('._-') or 'file'
    return _hashed(words, text, '-')


def is_topic(name: str) -> bool:
    """Tell whether a peer's name may be used as a full ROS topic or service name."""
    return bool(TOPIC.fullmatch(name)) and len(name) <= TOPIC_LIMIT and '__' not in name


def is_reply_topic(name: str) -> bool:
    """
    Tell whether chunks may be sent to a topic that a peer names: `.../action_chunk`, or with a
    number behind it, is one client's own, `.../answers/NAME` a relay's, which holds the sessions
    of many.
    """
    return is_topic(name) and (is_own_reply_topic(name) or name.split('/')[-2] == RELAY_SEGMENT)


def is_own_reply_topic(name: str) -> bool:
    """Tell whether only one client may listen for its chunks under this name."""
    return bool(OWN_REPLY_TOPIC.fullmatch(name.rpartition('/')[2]))


def is_printable(text: str, limit: int) -> bool:
    """Tell whether a peer's text may stand in a log line: no control codes, bounded in bytes."""
    return text.isprintable() and len(text.encode('utf-8', 'replace')) <= limit


def _hashed(words: str, text: str, joint: str) -> str:
    digest = hashlib.sha256(text.encode('utf-8', 'surrogatepass')).hexdigest()[:8]
    return words[: LENGTH_LIMIT - 9].rstrip('._-') + joint + digest
