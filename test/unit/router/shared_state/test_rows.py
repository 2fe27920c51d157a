# SPDX-License-Identifier: Apache-2.0
"""Which decisions of other routers are applied: every combination."""

from __future__ import annotations

from itertools import product

from lerobot_serve.router.storage.rows import is_news

FLAGS = ('is_unwritten', 'is_whole', 'is_known')
OLDER, OWN, NEWER = 4, 5, 6
# the combinations that are applied; all others are not
APPLIED = {
    # memory may say something else than the state, which has the own decision
    (OWN, False, False, False),
    (OWN, False, True, False),
    (NEWER, False, False, False),
    # also what memory says already: who decided, and its revision
    (NEWER, False, False, True),
    (NEWER, False, True, False),
}


def test_every_combination_is_applied_or_not():
    for revision, *flags in product((OLDER, OWN, NEWER), *[(False, True)] * len(FLAGS)):
        found = is_news(revision, OWN, **dict(zip(FLAGS, flags, strict=True)))
        assert found == ((revision, *flags) in APPLIED), (revision, flags)
