# SPDX-License-Identifier: Apache-2.0
"""What a learner remembers of a round, and what became of an announced episode. Plain data."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum


class Learned(Enum):
    """What an announced episode is."""

    NEW = 'new'
    # the same bag at the same place
    REPEATED = 'repeated'
    # a copy of a bag that is known, at another place
    DOUBLE = 'double'
    # another bag of the same episode: the first one counts
    OTHER_BAG = 'other_bag'
    # another bag of the same episode, which has its outcome: a cut one lacks it
    REPLACED = 'replaced'


class RoundEnd(Enum):
    """How a round ended; OPEN: it has not."""

    OPEN = ''
    PUBLISHED = 'published'
    FAILED = 'failed'
    GIVEN_UP = 'given_up'


@dataclass(frozen=True, slots=True)
class RoundRecord:
    """
    One round. `trained` is the fingerprint of its policy in the folder `output`, empty before it
    is trained; `deaths` counts processes that ended during it.
    """

    number: int
    attempt: int = 1
    deaths: int = 0
    parent: str = ''
    dataset_sha256: str = ''
    trained: str = ''
    output: str = ''
    end: RoundEnd = RoundEnd.OPEN
    text: str = ''
