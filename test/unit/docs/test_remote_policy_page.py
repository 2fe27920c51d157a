# SPDX-License-Identifier: Apache-2.0
"""The contract files in docs/remote_policies.md are ones that are read."""

from __future__ import annotations

import re

import pytest
from support.paths import REPOSITORY

from lerobot_serve.policies.remote import groot, http, lerobot_async, openpi
from lerobot_serve.policies.remote.contract_file import read_contract

PAGE = (REPOSITORY / 'docs' / 'remote_policies.md').read_text()
EXAMPLES = re.findall(r'```yaml\n# contract: (\w+)\n(.*?)```', PAGE, re.DOTALL)
PEERS = (openpi.OpenpiPeer, groot.GrootPeer, http.HttpPeer, lerobot_async.LerobotAsyncPeer)
FILES = {peer.kind: peer.contract_file for peer in PEERS}


@pytest.mark.parametrize(('kind', 'text'), EXAMPLES)
def test_each_example_is_read(tmp_path, kind, text):
    (tmp_path / 'contract.yaml').write_text(text)
    path = f'{tmp_path}/contract.yaml' + ('' if 'url:' in text else ',url=ws://host:1')
    contract = read_contract(path, FILES[kind])
    assert contract.state_names == contract.action_names
    assert {kind for kind, _ in EXAMPLES} == {'openpi', 'groot', 'lerobot_async'}


def test_every_field_is_explained():
    for kind in FILES.values():
        assert all(name in PAGE for name in kind.__struct_encode_fields__)
    assert all(f'`{kind}`' in PAGE for kind in FILES)
