"""
Safe names from strings that users and peers supply.

A robot may be called "Lab 3/arm #2": that is fine on the wire and in a log, but not as part of a
ROS name or of a path. What had to be changed gets a short hash of the original, so that two names
never become one.
"""

from __future__ import annotations

import hashlib
import re

TOKEN = re.compile(r'[A-Za-z][A-Za-z0-9]*(_[A-Za-z0-9]+)*')
FILE = re.compile(r'[A-Za-z0-9][A-Za-z0-9._-]*')
TOPIC = re.compile(r'(/[A-Za-z_][A-Za-z0-9_]*)+')
LENGTH_LIMIT = 64
TOPIC_LIMIT = 240


def ros_token(text: str) -> str:
    """
    Return `text` as one token of a ROS name: letters, digits and single underscores, a letter
    first.
    """
    if TOKEN.fullmatch(text) and len(text) <= LENGTH_LIMIT:
        return text
    words = re.sub(r'[^A-Za-z0-9]+', '_', text).strip('_') or 'name'
    return _hashed(words if words[0].isalpha() else f'n_{words}', text, '_')


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


def _hashed(words: str, text: str, joint: str) -> str:
    digest = hashlib.sha256(text.encode('utf-8', 'surrogatepass')).hexdigest()[:8]
    return words[: LENGTH_LIMIT - 9].rstrip('._-') + joint + digest
