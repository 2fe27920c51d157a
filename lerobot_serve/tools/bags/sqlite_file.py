# SPDX-License-Identifier: Apache-2.0
"""Reads the messages of an SQLite file, the older storage of rosbag2. Any thread."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
import sqlite3

from lerobot_serve.tools.bags.message import BagError, BagMessage

ALL = """
    SELECT topics.name, topics.type, messages.timestamp, messages.data
    FROM messages JOIN topics ON topics.id = messages.topic_id
    ORDER BY messages.timestamp, messages.id
"""


def read(path: Path, on_damage: Callable[[str], None]) -> Iterator[BagMessage]:
    """
    Yield the messages in the order of their stamps; `on_damage` receives the text of an error.

    Raises BagError for a file that is not such a database.
    """
    begun = False
    try:
        with closing(sqlite3.connect(f'{path.resolve().as_uri()}?mode=ro', uri=True)) as database:
            for topic, kind, stamp_ns, data in database.execute(ALL):
                begun = True
                yield BagMessage(topic, kind, stamp_ns, bytes(data))
    except (sqlite3.Error, TypeError) as error:
        if not begun:
            raise BagError(f'{path} cannot be read as a bag: {error}') from error
        on_damage(f'{path} is damaged ({error}); the rest is skipped')
