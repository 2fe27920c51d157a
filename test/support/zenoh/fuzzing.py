# SPDX-License-Identifier: Apache-2.0
"""How many examples the fuzz tests of the Zenoh link draw, and bytes of an altered layout."""

from __future__ import annotations

import os

from hypothesis import settings
from hypothesis import strategies as some

# examples of each fuzz test; CONTRIBUTING.md
VARIABLE = 'ZENOH_FUZZ_EXAMPLES'


def fuzz(default: int) -> settings:
    """Return the settings of a fuzz test: `default` examples unless the environment has more."""
    return settings(max_examples=int(os.environ.get(VARIABLE, default)))


@some.composite
def altered(draw: some.DrawFn, raw: bytes) -> bytes:
    """Return bytes with a few parts removed, inserted or replaced, as another layout has them."""
    for _ in range(draw(some.integers(0, 3))):
        begin = draw(some.integers(0, len(raw)))
        end = draw(some.integers(begin, min(len(raw), begin + 12)))
        raw = raw[:begin] + draw(some.binary(max_size=12)) + raw[end:]
    return raw


# a segment of a key that Zenoh accepts
segments = some.text(
    some.characters(exclude_characters='/*$#?', exclude_categories=('Cs',)),
    min_size=1,
    max_size=80,
)
