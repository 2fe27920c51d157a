# SPDX-License-Identifier: Apache-2.0
"""Whose name it is: pure, for everybody who keeps sessions."""

from __future__ import annotations

import pytest
from support.server.session_rig import ask, S

from lerobot_serve.contract.records import Extension
from lerobot_serve.contract.schema import Refusal
from lerobot_serve.contract.services.session import check_client_id_is_free, SessionRefused

GRACE_NS = 5 * S


def test_another_robot_does_not_get_the_name_of_one_that_was_just_heard():
    with pytest.raises(SessionRefused) as refused:
        check_client_id_is_free(ask('arm'), ask('arm', instance=2), int(1.26 * S), GRACE_NS)
    assert refused.value.code == Refusal.NAME_IN_USE
    assert str(refused.value) == (
        "client_id 'arm' is in use by another robot, active 1.3 s ago; give each robot its own "
        'client_id, or retry after 5 s'
    )


@pytest.mark.parametrize('silent_ns', [GRACE_NS, GRACE_NS + 1, 100 * S])
def test_a_name_is_free_when_it_was_not_heard_for_long(silent_ns):
    check_client_id_is_free(ask('arm'), ask('arm', instance=2), silent_ns, GRACE_NS)


def test_a_robot_keeps_its_own_name():
    check_client_id_is_free(ask('arm', epoch=1), ask('arm', epoch=2), 0, GRACE_NS)


@pytest.mark.parametrize(
    ('held', 'asked', 'is_over'),
    [
        (8, 7, True),
        (8, 8, False),
        (7, 8, False),
        (2, 2**32 - 3, True),
        (2**32 - 3, 2, False),
        (5000, 5000 - 1024, True),
        (5000, 5000 - 1025, False),
        (4_000_000_000, 7, False),
    ],
)
def test_an_older_session_of_the_same_client_does_not_come_back(held, asked, is_over):
    known, request = ask('arm', epoch=held), ask('arm', epoch=asked)
    if not is_over:
        check_client_id_is_free(known, request, 0, GRACE_NS)
        return
    with pytest.raises(SessionRefused, match=f'epoch {held}; that of epoch {asked} is over') as no:
        check_client_id_is_free(known, request, 100 * S, GRACE_NS)
    assert no.value.code == Refusal.NAME_IN_USE
    # another process counts from anywhere
    check_client_id_is_free(known, ask('arm', instance=2, epoch=asked), 100 * S, GRACE_NS)


def test_what_is_asked_again_with_the_same_extensions_is_the_same():
    one, same = (ask(extensions=(Extension('vendor.force', b'\x01'),)) for _ in range(2))
    assert one == same
    assert one != ask()
