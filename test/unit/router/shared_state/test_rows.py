# SPDX-License-Identifier: Apache-2.0
"""Which decisions of other routers are applied: every combination."""

from __future__ import annotations

from itertools import product

from lerobot_serve.router.storage.rows import Age, age_of, is_news

FLAGS = ('is_unwritten', 'is_whole', 'is_known')
# the combinations that are applied; all others are not
APPLIED = {
    # memory may say something else than the state, which has the own decision
    (Age.OWN, False, False, False),
    (Age.OWN, False, True, False),
    (Age.NEWER, False, False, False),
    # also what memory says already: who decided, and its revision
    (Age.NEWER, False, False, True),
    (Age.NEWER, False, True, False),
}


def test_every_combination_is_applied_or_not():
    for age, *flags in product(Age, *[(False, True)] * len(FLAGS)):
        found = is_news(age, **dict(zip(FLAGS, flags, strict=True)))
        assert found == ((age, *flags) in APPLIED), (age, flags)


def test_without_an_own_decision_every_revision_is_newer():
    assert age_of(1, 0) is Age.NEWER
    assert [age_of(revision, 5) for revision in (4, 5, 6)] == list(Age)
