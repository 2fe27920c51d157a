# SPDX-License-Identifier: Apache-2.0
"""One end of the local path is killed at any instant; the other sees it, and nothing is left."""

from __future__ import annotations

import json

from benchmarks.local_kills import measure

KILLS = 40


def test_a_kill_is_seen_and_leaves_nothing(tmp_path):
    (case,) = measure(0, tmp_path, kills=KILLS)
    seen = case.series_ms['seen after']
    assert len(seen) + case.counts['never_met'] == KILLS
    assert len(seen) > KILLS / 4
    assert case.counts['unseen'] == case.counts['descriptors'] == 0
    # as it is written
    json.dumps(case.as_json())
