# SPDX-License-Identifier: Apache-2.0
"""A program of torch runs in a child process first, which its harm ends."""

from __future__ import annotations

import pytest

from lerobot_serve.policies.base import LoadOptions, PolicyError

torch = pytest.importorskip('torch', reason='torch is not installed (TORCH=none)')

from support.policies import exported_rig as rig  # noqa: E402
from torch import nn  # noqa: E402

from lerobot_serve.policies.exported.loader import load  # noqa: E402


class Greedy(nn.Module):
    """Needs 16 GB, in parts that are small each."""

    def forward(self, image: torch.Tensor, state: torch.Tensor) -> torch.Tensor:
        parts = [torch.ones(1 << 27) for _ in range(32)]
        seen = sum(part[0] for part in parts) * image.mean() + state.sum()
        return seen * torch.ones(state.shape[0], rig.ROWS, rig.JOINTS)


@pytest.mark.slow
def test_a_program_that_takes_all_memory_ends_its_child_alone(tmp_path):
    path = rig.write_policy(tmp_path, rig.exported(Greedy()))
    with pytest.raises(PolicyError, match='cannot be loaded and run by torch'):
        load(LoadOptions(path))


@pytest.mark.slow
def test_a_plain_program_passes_its_trial(tmp_path):
    policy = load(LoadOptions(rig.write_policy(tmp_path, rig.exported())))
    assert policy.predict([rig.request((1, 2))])
