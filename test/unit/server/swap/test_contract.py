# SPDX-License-Identifier: Apache-2.0
"""What a swap may load: a folder below policy_root whose policy keeps what clients agreed on."""

from __future__ import annotations

from dataclasses import fields

import pytest
from support.replacing import replace
from support.server.fake_policy import FAKE_DESCRIPTION

from lerobot_serve.contract.schema import StateClass
from lerobot_serve.contract.services.action_range import ActionRange
from lerobot_serve.policies.base import PolicyCamera, PolicyDescription
from lerobot_serve.server.policy_swap import folder_below, SwapRefused
from lerobot_serve.server.swap_contract import contract_differences, PolicyContract

CAMERAS = (PolicyCamera('front', 480, 640), PolicyCamera('wrist', 240, 320))
SERVED = PolicyContract(
    'lerobot',
    replace(
        FAKE_DESCRIPTION,
        policy_type='act',
        fingerprint='pick@1',
        state_names=('one', 'two'),
        action_names=('one', 'two'),
        cameras=CAMERAS,
        chunk_size=50,
        trained_fps=30.0,
        supports_rtc=True,
        action_range=ActionRange((-3.0, -1.0), (3.0, 1.0)),
    ),
)
# field -> another value, and what the text says of it
OTHERS: dict[str, tuple[object, str]] = {
    'policy_type': ('smolvla', 'policy type: act served, smolvla given'),
    'state_names': (('one',), 'state names: one, two served, one given'),
    'action_names': (('two', 'one'), 'action names: one, two served, two, one given'),
    'cameras': (CAMERAS[:1], 'wrist 240x320x3 served, front 480x640x3 given'),
    'chunk_size': (40, 'chunk size: 50 served, 40 given'),
    'trained_fps': (50.0, 'trained rate [Hz]: 30 served, 50 given'),
    'state_class': (StateClass.RECURRENT, 'chunk_stateless served, recurrent given'),
    'supports_rtc': (False, 'real-time chunking: yes served, no given'),
    'observation_steps': (2, 'observations per request: 1 served, 2 given'),
    'observation_stride_steps': (3, 'control steps between observations: 1 served, 3 given'),
    'action_range': (
        ActionRange((-170.0, -60.0), (170.0, 60.0)),
        'unit of the actions: actions up to 3 in training served, '
        'actions up to 170 in training given',
    ),
    'max_delay_steps': (
        3,
        'longest inference delay: without a limit served, 3 control steps given',
    ),
}
# what another policy of the same contract may change
FREE = {
    'fingerprint': 'pick@2',
    'device': 'cuda:0',
    'stochastic': True,
    'batch_limit': 3,
    'denoise_steps': 10,
    'notes': ('a note',),
    'any_thread': True,
    'embedding_cache_bytes': 5,
}


def given(**changes: object) -> PolicyContract:
    return PolicyContract('lerobot', replace(SERVED.description, **changes))


def test_each_field_of_a_description_is_of_the_contract_or_free():
    assert {each.name for each in fields(PolicyDescription)} == OTHERS.keys() | FREE.keys()


@pytest.mark.parametrize('field', OTHERS)
def test_a_difference_is_named_with_both_values(field):
    value, text = OTHERS[field]
    found = contract_differences(SERVED, given(**{field: value}))
    assert text in found
    assert ';' not in found


@pytest.mark.parametrize('field', FREE)
def test_what_no_client_agreed_on_may_change(field):
    assert contract_differences(SERVED, given(**{field: FREE[field]})) == ''


def test_the_kind_is_of_the_contract_and_all_differences_are_named():
    other = PolicyContract('builtin', replace(SERVED.description, chunk_size=9, trained_fps=9.0))
    assert contract_differences(SERVED, other) == (
        'policy kind: lerobot served, builtin given; chunk size: 50 served, 9 given; '
        'trained rate [Hz]: 30 served, 9 given'
    )


def test_the_order_of_the_cameras_is_free_and_their_size_is_not():
    assert contract_differences(SERVED, given(cameras=CAMERAS[::-1])) == ''
    smaller = (CAMERAS[0], PolicyCamera('wrist', 240, 321))
    assert 'wrist 240x321x3 given' in contract_differences(SERVED, given(cameras=smaller))


@pytest.mark.parametrize(
    ('before', 'after', 'is_refused'),
    [
        (0, 0, False),
        (0, 9, True),
        (4, 0, False),
        (4, 4, False),
        (4, 5, False),
        (4, 3, True),
    ],
)
def test_requests_of_the_open_sessions_stay_within_the_limit_of_the_delay(
    before, after, is_refused
):
    served = given(max_delay_steps=before)
    found = contract_differences(served, given(max_delay_steps=after))
    assert ('longest inference delay' in found) == is_refused == bool(found)


@pytest.mark.parametrize(
    'actions',
    [
        None,
        ActionRange((-2.0, -1.0), (2.9, 1.0)),
        ActionRange((-29.0, 0.0), (0.0, 0.0)),
        ActionRange((0.0, 0.0), (0.0, 0.0)),
    ],
)
def test_a_range_of_the_same_unit_may_differ(actions):
    assert contract_differences(SERVED, given(action_range=actions)) == ''


def test_a_long_list_is_shortened():
    names = tuple(f'joint_{i}' for i in range(100))
    assert len(contract_differences(SERVED, given(state_names=names))) < 300


@pytest.fixture
def root(tmp_path):
    """A root with one policy, and another policy outside of it."""
    (tmp_path / 'root' / 'pick').mkdir(parents=True)
    (tmp_path / 'root' / 'pick' / 'model').write_text('weights')
    (tmp_path / 'secret').mkdir()
    (tmp_path / 'secret' / 'model').write_text('weights')
    return tmp_path / 'root'


def test_a_folder_is_given_relative_or_absolute(root):
    assert folder_below(str(root), 'pick') == root / 'pick'
    assert folder_below(str(root), str(root / 'pick')) == root / 'pick'
    assert folder_below(str(root), '../root/pick/') == root / 'pick'


def test_the_root_may_be_a_link_and_so_may_a_folder_within_it(root):
    link = root.parent / 'link'
    link.symlink_to(root)
    (root / 'latest').symlink_to(root / 'pick')
    assert folder_below(str(link), 'latest') == root / 'pick'


@pytest.mark.parametrize(
    ('given', 'text'),
    [
        ('', 'must name a folder below policy_root'),
        ('pi\0ck', 'must name a folder below policy_root'),
        ('../secret', 'copy the policy there'),
        ('/etc', 'copy the policy there'),
        ('.', 'copy the policy there'),
        ('pick/../../secret', 'copy the policy there'),
        ('door', 'copy the policy there'),
        ('place', 'is not a folder'),
        ('pick/model', 'is not a folder'),
    ],
)
def test_everything_else_is_refused(root, given, text):
    (root / 'door').symlink_to(root.parent / 'secret')
    with pytest.raises(SwapRefused, match=text):
        folder_below(str(root), given)


def test_a_sibling_whose_name_begins_as_the_root_is_not_below_it(root):
    (root.parent / 'root2').mkdir()
    with pytest.raises(SwapRefused, match='copy the policy there'):
        folder_below(str(root), '../root2')


def test_without_a_root_the_text_says_how_to_set_it():
    with pytest.raises(SwapRefused, match=r'policy_root is empty.*restart it with policy_root'):
        folder_below('', '/etc')


def test_in_a_store_a_version_is_given_as_everywhere(tmp_path):
    ids = ('pick@0123456789abcdef', 'place@fedcba9876543210')
    for name in ids:
        (tmp_path / name).mkdir()
    (tmp_path / '.store').mkdir()
    (tmp_path / '.store' / 'lock').touch()
    root = str(tmp_path)
    for given in (ids[0], 'pick', '0123', str(tmp_path / ids[0])):
        assert folder_below(root, given) == tmp_path / ids[0]
    with pytest.raises(SwapRefused, match='is not in the store'):
        folder_below(root, 'unknown')
    with pytest.raises(SwapRefused, match='give more of the id'):
        folder_below(root, 'p')
