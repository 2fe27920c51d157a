"""A journal with what a router remembers beside it."""

from __future__ import annotations

from collections import OrderedDict
from pathlib import Path

from lerobot_serve.router.decisions import decision
from lerobot_serve.router.journal import Journal
from lerobot_serve.router.split import bucket

CAPACITY = 100


class Book:
    """A journal with what is remembered beside it, and what it told."""

    def __init__(self, path: Path) -> None:
        self.path, self.told = path, []
        self.journal = Journal(path, CAPACITY, self.told.append)
        self.remembered = OrderedDict(self.journal.load())

    def place(self, name: str, slot: str = 'a', **known) -> None:
        self.remembered[name] = decided(name, slot, **known)
        self.remembered.move_to_end(name)
        if len(self.remembered) > CAPACITY:
            self.remembered.popitem(last=False)
        self.journal.add(name, self.remembered[name], self.remembered)

    def again(self) -> Book:
        """What a router finds that is started next."""
        self.journal.close()
        return Book(self.path)


def decided(name, slot='a', split_percent=50, moved=False, reason=''):
    return decision(bucket(name), slot, split_percent, moved, reason)


def names(count: int) -> list[str]:
    return [f'episode {number}' for number in range(count)]


def lines_of(path: Path) -> list[bytes]:
    return path.read_bytes().splitlines()
