# SPDX-License-Identifier: Apache-2.0
"""What each kind of file that people write, or that comes from elsewhere, is refused with."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
import json
from pathlib import Path
from typing import Any

import pytest
from support.refusals import refusals
import yaml

from lerobot_serve.edge.robot import file as robot_file
from lerobot_serve.edge.robot.file_format import parse_yaml
from lerobot_serve.experience.recorded_episode import read_summary
from lerobot_serve.files.load import load
from lerobot_serve.files.parsing import from_yaml
from lerobot_serve.gateway.callers.mapping import MappingFile
from lerobot_serve.gateway.http.body import read_body
from lerobot_serve.learner.trainers.trainer_file import trainer_options
from lerobot_serve.policies.builtin.settings import ReachSettings
from lerobot_serve.policies.exported.sidecar import Sidecar
from lerobot_serve.policies.files.policy_folder import read_policy_json
from lerobot_serve.policies.remote.contract_file import MappedContractFile, read_contract
from lerobot_serve.tools.fleet.plan import fleet_plan
from lerobot_serve.versions.manifest import parsed_manifest

pytestmark = [pytest.mark.golden, pytest.mark.slow]
SHA = 'a' * 64
NAMES = ['a.pos', 'b.pos']
POLICY: dict[str, Any] = {
    'format_version': 1,
    'id': 'pick',
    'state_names': NAMES,
    'action_names': NAMES,
    'cameras': [{'name': 'observation.images.front', 'height': 48, 'width': 64}],
    'chunk_size': 8,
    'trained_fps': 20.0,
}
Read = Callable[[str], object]


def from_file(name: str, read: Callable[[Path], object]) -> Read:
    """Return what reads a text as a file of this name in the current folder."""

    def reader(text: str) -> object:
        Path(name).write_text(text)
        return read(Path(name))

    return reader


def plain(document: Any) -> str:
    return yaml.safe_dump(document, sort_keys=False)


KINDS: dict[str, tuple[Any, Callable[[Any], str], Read]] = {
    'robot_file': (
        {
            'name': 'arm',
            'fps': 20,
            'state': [
                {'topic': 'joint_states', 'joints': ['a', 'b'], 'max_age_s': 0.2},
                {
                    'topic': 'range',
                    'type': 'std_msgs/Float64MultiArray',
                    'names': ['distance'],
                    'max_age_s': 0.2,
                },
            ],
            'cameras': {'observation.images.front': {'topic': 'camera', 'max_age_s': 0.3}},
            'actions': {
                'a.pos': {'joint': 'a', 'min': -1.0, 'max': 1.0, 'max_velocity': 2.0},
                'b.pos': {'joint': 'b', 'min': -1.0, 'max': 1.0, 'max_step': 0.1, 'max_lead': 0.5},
            },
            'interlocks': {
                'obstacle': {'state': 'distance', 'below': 0.3, 'then': {'a.pos': 0.0}}
            },
            'command': {'topic': 'commands', 'type': 'std_msgs/Float64MultiArray'},
            'safe_pose': {'a.pos': 0.0, 'b.pos': 0.5},
        },
        plain,
        lambda text: robot_file.parse(parse_yaml(text, 'robot.yaml'), 'robot.yaml'),
    ),
    'fleet_file': (
        {
            'servers': {'a': {'policy': 'reach_v1', 'cpu_threads': 1}},
            'router': {'canary': {'minimum_step_s': 5.0}},
            'robots': {'robot_1': {'simulated': True, 'task': 'reach'}},
            'record': {'folder': '/bags', 'strategy': 'episodic'},
            'dashboard': {'port': 0},
        },
        plain,
        lambda text: fleet_plan(text, 'fleet.yaml', Path()),
    ),
    'manifest': (
        {
            'format_version': 1,
            'id': 'act@0123456789abcdef',
            'policy_kind': 'lerobot',
            'created': '2026-01-01T00:00:00Z',
            'files': [{'path': 'config.json', 'size_bytes': 2, 'sha256': SHA}],
            'parent': 'act@ffffffffffffffff',
            'dataset_sha256': SHA,
            'note': 'first',
            'hub': '',
            'sources': ['/srv/versions'],
        },
        json.dumps,
        lambda text: parsed_manifest(text.encode(), 'manifest.json'),
    ),
    'trainer_builtin': (
        {'builtin': {'steps': 800, 'batch_size': 32, 'learning_rate': 0.001, 'cpu_threads': 1}},
        plain,
        lambda text: trainer_options(from_yaml(text), 'trainer.yaml'),
    ),
    'trainer_command': (
        {
            'command': ['lerobot-train', '--steps={steps}', '--output_dir={output}'],
            'result': '{output}/checkpoints/last/pretrained_model',
            'steps': 2000,
            'environment': {'HF_HUB_OFFLINE': '1'},
        },
        plain,
        lambda text: trainer_options(from_yaml(text), 'trainer.yaml'),
    ),
    'contract_file': (
        {
            'url': 'ws://gpu-3:8000',
            'name': 'pi05',
            'version': '12000',
            'state_names': NAMES,
            'action_names': NAMES,
            'cameras': {'front': {'height': 224, 'width': 224}},
            'chunk_steps': 15,
            'control_hz': 15,
            'state': {'observation/position': NAMES},
            'images': {'observation/image': 'front'},
            'task': 'prompt',
            'connect_timeout_s': 5,
            'max_reply_mb': 16,
        },
        plain,
        from_file('contract.yaml', lambda file: read_contract(str(file), MappedContractFile)),
    ),
    'policy_reach': (
        POLICY
        | {
            'kind': 'builtin.reach',
            'cameras': [*POLICY['cameras'], POLICY['cameras'][0] | {'name': 'wrist'}],
            'network': {'image_pixels': 32, 'channels': [8, 16], 'hidden': 64},
        },
        json.dumps,
        from_file('policy.json', partial(read_policy_json, ReachSettings)),
    ),
    'policy_exported': (
        POLICY
        | {
            'kind': 'exported',
            'inputs': ['state', 'observation.images.front'],
            'image_scale': '0..1',
            'batch': 'dynamic',
            'stochastic': False,
            'normalization': {
                'state': 'mean_std',
                'observation.images.front': 'none',
                'action': 'mean_std',
            },
        },
        json.dumps,
        from_file('policy.json', partial(read_policy_json, Sidecar)),
    ),
    'gateway_mapping': (
        {
            'cameras': {'observation/image': 'observation.images.front'},
            'state': ['observation/position'],
            'actions': {'arm': NAMES},
        },
        plain,
        lambda text: load(MappingFile, from_yaml(text), 'mapping.yaml'),
    ),
    'http_body': (
        {
            'state': [0.0, 1.0],
            'images': {},
            'task': 'reach',
            'episode_id': 'ep',
            'request_id': 'r1',
            'client_id': 'robot',
            'episode_start': True,
            'timeout_s': 1.0,
            'inference_delay_steps': 2,
        },
        json.dumps,
        lambda text: read_body(text.encode()),
    ),
    'intervals': (
        {
            'robot': 'arm_1',
            'node': '/arm/edge_controller',
            'episode_id': 'ep',
            'outcome': 'success',
            'ended': 'ended',
            'control_steps': 20,
            'control_steps_person': 5,
            'policies': ['p@1'],
            'intervals': [
                {'source': 'person', 'first_step': 1, 'last_step': 5, 'begin_ns': 1, 'end_ns': 2}
            ],
            'intervention': True,
        },
        json.dumps,
        from_file('intervals.json', lambda file: read_summary(file.parent)),
    ),
}


@pytest.mark.parametrize('kind', KINDS)
def test_refusals_are_those_that_were_agreed(kind, golden, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    document, written, read = KINDS[kind]
    read(written(document))
    golden.holds(f'refusals/{kind}.txt', ''.join(refusals(document, written, read)))
