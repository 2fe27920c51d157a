# SPDX-License-Identifier: Apache-2.0
"""Bags that were recorded beside the acts of the demo are read as when they were recorded."""

from __future__ import annotations

from collections import defaultdict
import hashlib
import json

import msgspec
import numpy as np
import pytest
from support.golden import FOLDER, Golden

from lerobot_serve.contract.codec import encode
from lerobot_serve.tools.bags.reader import Bag

FEW_VALUES = 16
# of the serving acts, and of the learning ones: corrections of a person, and pictures
both_bags = pytest.mark.parametrize('name', ['demo', 'learning'])


@pytest.mark.golden
@both_bags
def test_each_message_of_the_demo_is_read_as_before(golden: Golden, name: str):
    bag, raw, shown = Bag(FOLDER / 'bags' / name), defaultdict(list), []
    for message in bag.read():
        raw[message.topic].append(message)
    for topic, messages in sorted(raw.items()):
        texts = [shown_as(each.record()) for each in messages if own(each.type)]
        digest = hashlib.sha256('\n'.join(texts).encode()).hexdigest()[:16]
        shown += [f'{topic}: {len(messages)} messages, {messages[0].type}, {digest}', *texts[-1:]]
    assert bag.is_complete
    golden.holds(f'bags/{name}.txt', '\n'.join(shown) + '\n')


@both_bags
def test_each_message_of_the_demo_is_written_as_it_was_read(name: str):
    for message in Bag(FOLDER / 'bags' / name).read():
        if own(message.type):
            found = message.record()
            # not of the same bytes: the middleware leaves what it likes between the fields
            again = message._replace(data=encode(found)).record()
            assert shown_as(again) == shown_as(found), message.topic


def shown_as(record: object) -> str:
    return json.dumps(msgspec.to_builtins(record, enc_hook=shown_array), indent=1)


def shown_array(values: np.ndarray) -> object:
    """Return few values as they are, and those of a picture or a chunk by their digest."""
    if values.size <= FEW_VALUES:
        return values.tolist()
    return f'{values.dtype} {values.shape} {hashlib.sha256(values.tobytes()).hexdigest()[:16]}'


def own(kind: str) -> bool:
    return kind.startswith('lerobot_serve_interfaces/msg/')
