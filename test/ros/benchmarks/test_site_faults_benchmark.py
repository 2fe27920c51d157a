# SPDX-License-Identifier: Apache-2.0
"""The fault run of a site with a few faults: real processes, two networks, a real PostgreSQL."""

from __future__ import annotations

import pytest

from benchmarks import site_faults
from benchmarks.site import check, postgres
from benchmarks.site.faults import KINDS

FAULTS = len(KINDS)


@pytest.mark.release
@pytest.mark.limit_s(600)
@pytest.mark.skipif(not postgres.is_installed(), reason=postgres.MISSING)
def test_no_request_of_a_site_in_trouble_is_without_an_end(tmp_path, monkeypatch):
    (case,) = site_faults.measure(4, tmp_path, kills=FAULTS)
    if why := case.parameters.get('not_measured'):
        pytest.skip(str(why))
    if not all(case.goals.values()):
        # a busy machine may lose a request without a fault, and need more time for a command
        monkeypatch.setattr(check, 'OBEYED_AFTER_S', 10.0)
        violations = check.check(tmp_path / 'site_faults_1').violations
        assert {rule for rule, found in violations.items() if found} <= {'explained'}, violations
    assert sum(n for name, n in case.counts.items() if name.startswith('faults: ')) == FAULTS
    # there was something to judge, and each of the programs saw some of it
    assert case.counts['replies'] > 50
    assert case.counts['requests seen on the wire'] > 50
    assert case.counts['requests known to a router'] > 50
    assert case.counts['requests known to a server'] > 50
    assert case.counts['control steps with an action of a policy'] > 500
    assert case.counts['commands of the operator: done'] > 0
