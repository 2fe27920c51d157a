# SPDX-License-Identifier: Apache-2.0
"""
Make safe names from strings of users and peers.

A robot may have the name "Lab 3/arm #2": valid on the wire and in a log, but not in a ROS name or
a path. A changed name gets a short hash of the original, so that two names never collide.
"""

from __future__ import annotations

import hashlib
import re

from lerobot_serve.contract.limits import ID_LIMIT

TOKEN = re.compile(r'[A-Za-z][A-Za-z0-9]*(_[A-Za-z0-9]+)*')
FILE = re.compile(r'[A-Za-z0-9][A-Za-z0-9._-]*')
TOPIC = re.compile(r'(/[A-Za-z_][A-Za-z0-9_]*)+')
LENGTH_LIMIT = 64
OVER_ZENOH, OVER_ROS = 'zenoh:', 'ros:'
TOPIC_LIMIT = 240
# the last, and the second last, segment of a reply topic
OWN_REPLY_TOPIC, RELAY_SEGMENT = re.compile(r'action_chunk(_[0-9]+)?'), 'replies'
# of the keys over Zenoh, see zenoh.keys; and those on which a robot, and a router, gets replies
KEY_ROOT = '@lerobot'
SEGMENT, EPOCH = '[A-Za-z0-9][A-Za-z0-9._-]*', '[0-9a-f]{8}'
REPLY_KEY = re.compile(
    f'{KEY_ROOT}/{SEGMENT}/{SEGMENT}/'
    f'(robot/{SEGMENT}/{EPOCH}/action_chunk|router/{SEGMENT}/(replies|shadow|second_draw)/{EPOCH})'
)
REPLY_TOPIC_FORMS = '/.../action_chunk, or /.../replies/NAME for a relay'


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
    """Return the session name in logs and traces, unique for each client and epoch."""
    epoch = f'#{session_epoch:08x}'
    if len(client_id.encode()) + len(epoch) <= ID_LIMIT:
        return client_id + epoch
    # two long names may share their start; a short name cannot end like this
    mark = f'{epoch}~{hashlib.blake2s(client_id.encode(), digest_size=8).hexdigest()}'
    return client_id.encode()[: ID_LIMIT - len(mark)].decode(errors='ignore') + mark


def default_episode_id(client_id: str, session_epoch: int, number: int) -> str:
    """Return an episode id that is unique in the fleet and fits a message."""
    end = f'-{session_epoch:08x}-{number:04d}'
    return client_id.encode()[: ID_LIMIT - len(end)].decode(errors='ignore') + end


def client_of_episode(episode_id: str) -> str:
    """Return the client in a default episode id; empty for another id."""
    found = re.fullmatch(r'(.+)-[0-9a-f]{8}-[0-9]{4,}', episode_id, re.DOTALL)
    return found[1] if found else ''


def namespace(given: str, client_id: str | None) -> str:
    """Return the given namespace of a robot's nodes, or one derived from `client_id`."""
    return given or (ros_token(client_id) if client_id else '')


def file_name(text: str) -> str:
    """Return `text` as one safe file name: no separator, no leading dot, no reserved character."""
    if FILE.fullmatch(text) and len(text) <= LENGTH_LIMIT:
        return text
    words = re.sub(r'[^A-Za-z0-9._-]+', '_', text).strip('._-') or 'file'
    return _hashed(words, text, '-')


def is_topic(name: str) -> bool:
    """Return whether a peer's name is valid as a full ROS topic or service name."""
    return bool(TOPIC.fullmatch(name)) and len(name) <= TOPIC_LIMIT and '__' not in name


def is_reply_topic(name: str) -> bool:
    """
    Return whether a topic of a peer is valid as reply topic: `.../action_chunk`, with an optional
    number, of one client, or `.../replies/NAME` of a relay with the sessions of many.
    """
    return is_topic(name) and (is_own_reply_topic(name) or name.split('/')[-2] == RELAY_SEGMENT)


def is_reply_key(name: str) -> bool:
    """Return whether a reply topic is a key of Zenoh; no ROS name begins like one."""
    return bool(REPLY_KEY.fullmatch(name)) and len(name) <= TOPIC_LIMIT


def is_own_reply_topic(name: str) -> bool:
    """Return whether the reply topic belongs to a single client."""
    return bool(OWN_REPLY_TOPIC.fullmatch(name.rpartition('/')[2]))


def full_name(namespace: str, server: str) -> str:
    """Return the full name of a node; one without a leading / is relative to the namespace."""
    if is_over_zenoh(server):
        return OVER_ZENOH + full_name(namespace, node_name(server))
    return server if server.startswith('/') else f'{namespace.rstrip("/")}/{server}'


def is_over_zenoh(server: str) -> bool:
    """Return whether a server is named as one over the other link, `zenoh:/policy_server`."""
    return server.startswith(OVER_ZENOH)


def node_name(server: str) -> str:
    """Return the name of a server's node, without the link."""
    return server.removeprefix(OVER_ZENOH)


def is_printable(text: str, limit: int) -> bool:
    """Return whether a peer's text is safe in a log line: no control codes, bounded in bytes."""
    return text.isprintable() and len(text.encode('utf-8', 'replace')) <= limit


def _hashed(words: str, text: str, joint: str) -> str:
    digest = hashlib.sha256(text.encode('utf-8', 'surrogatepass')).hexdigest()[:8]
    return words[: LENGTH_LIMIT - 9].rstrip('._-') + joint + digest
