# SPDX-License-Identifier: Apache-2.0
"""Fleet files, good and bad, and what each gives: its processes in order, or a refusal."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.paths import REPOSITORY

from lerobot_serve.errors import UserError
from lerobot_serve.tools.fleet.plan import fleet_plan
from lerobot_serve.tools.fleet.shipped import config_folder

pytestmark = pytest.mark.golden
NULL = 'null:joints=6,chunk=30,cameras=,fps=30'
BOMB = 'a0: &a0 [x, x, x, x, x, x, x, x, x, x]\n' + ''.join(
    f'a{n}: &a{n} [{", ".join([f"*a{n - 1}"] * 10)}]\n' for n in range(1, 12)
)
SHIPPED = sorted((REPOSITORY / 'config' / 'fleets').glob('*.yaml'))
# NULL stands for a policy without files
FILES = """
servrs: {}
---
servers: {v1: {polcy: x}}
---
servers:
  v1: {policy: reach, count: 2}
---
servers:
  v1:
    policy: reach
    max_sessions: 0
---
servers: {v1: {policy: rech}}
---
servers: {v1: {policy: 3}}
---
servers: {v1: {policy: {a: b}}}
---
servers: {v1: }
---
servers: {v1: {policy: reach, slot: c}}
---
servers: {v1: {policy: reach, replicas: 0}}
---
servers: {v1: {policy: reach, replicas: 1.0}}
---
servers: {v1: {policy: reach, pin_task: true}}
---
servers: {v1: {policy: reach, cpu_threads: {}}}
---
servers: {v1: {policy: reach, cpu_threads: {a: 1}}}
---
servers: {v1: {policy: reach, max_sessions: 0x10}}
---
servers: {v1: {policy: reach, max_sessions: 1_0}}
---
servers: {v1: {policy: reach, max_sessions: null}}
---
servers: {a-b: {policy: reach}}
---
servers: {on: {policy: reach}}
---
servers: {? [a, b] : {policy: reach}}
---
servers: [v1]
---
servers: {v1: {policy: reach, slot: a}}
router:
---
servers: {v1: {policy: reach, slot: a}, v2: {policy: reach}}
router:
---
servers: {v1: {policy: reach, slot: shadow}, v2: {policy: reach, slot: shadow}}
router:
---
servers:
  v1: {policy: reach}
  v1: {policy: reach}
---
servers:
  robot_1: {policy: reach}
robots: {simulated: true}
---
servers: &s {v1: *s}
---
servers: !!set {a, b}
---
servers: {v1: {policy: "NULL", trace_folder: ~nobody_at_all/x}}
---
servers: {v1: {policy: "NULL", trace_folder: [x]}}
---
servers: {v1: {policy_kind: null, policy_path: "joints=6,chunk=30,cameras=,fps=30"}}
---
servers: {v1: {policy_kind: "null", policy_path: "joints=6,chunk=30,cameras=,fps=30"}}
---
router: {canary: {pln: [5]}}
---
router: {canary: {}}
---
router: {canary: 7}
---
router: {split_percent: 140}
---
router: 7
---
gateway:
servers: {a: {policy: "NULL", slot: a}, b: {policy: "NULL", slot: b}}
---
gateway: {groot: {port: 1}}
servers: {a: {policy: "NULL", slot: a}, b: {policy: "NULL", slot: b}}
router: {}
---
robots:
  left: {}
---
robots: {count: 0, simulated: true}
---
robots: {count: 2, simulated: true, client_id: same}
---
robots: {count: 1, simulated: true, client_id: same}
---
robots:
  left:
    simulated: true
  right:
    simulated: true
    client_id: left
---
robots: {simulated: maybe}
---
robots: {a: {simulated: true, simulated: true}}
---
robots: {1: {}, "1": {}}
---
robots: {left: {simulated: true, robot: so101}}
---
robots: {left: {robot: so101, simulation: {seed: 1}}}
---
robots: {left: {simulated: true, simulation: {sed: 1}}}
---
robots: {left: {simulated: true, simulation: 7}}
---
robots: {left: {simulated: true, simulation: }}
---
robots: {left: {robot: so10}}
---
robots: {left: {robot: [so101]}}
---
robots: {left: {robot: so101, robot_file: x}}
---
robots: {left: {robot: so101, servers: /policy_server}}
---
robots: {left: {robot: so101, local: {}}}
---
robots: {left: {robot: so101, local: {policy: none_such}}}
---
robots: {left: {robot: so101, local: {policy: reach, replicas: 2}}}
---
robots: {left: {robot: so101, local: {policy: reach, slot: a}}}
---
robots: {left: {robot: so101, local: 7}}
---
robots: {count: 2, 2: {simulated: true}}
---
namespace: 3
robots: {simulated: true}
---
namespace: a b
robots: {simulated: true}
---
namespace: ''
robots: {simulated: true}
---
namespace:
robots: {simulated: true}
---
log_level: loud
robots: {simulated: true}
---
namespace: cell
---
dashboard: {port: 0}
---
record: {folder: a}
---
servers: {
---
[]
---
dashboard: {prt: 1}
servers: {one: {policy: "NULL"}}
---
dashboard: {port: 70000}
---
dashboard: {address: 5}
---
dashboard: {tls_key: a}
---
dashboard: {host_name: gpu, connect: [tcp/a:1, 7]}
---
dashboard: {host_name: gpu, connect: []}
servers: {one: {policy: "NULL"}}
---
dashboard: {token_file: ~nobody_at_all/x}
---
dashboard: {keys: }
---
dashboard: 7
---
dashboard:
servers: {one: {policy: "NULL"}}
---
record: {}
---
record: {foldr: a}
---
record: {folder: a, strategy: all}
---
record: {folder: a, strategy: continuous}
---
record: {folder: a, before: 3}
---
record: {folder: a, gone_after: 0}
---
record: {folder: a, gone_after: x}
---
record: {folder: a, gone_after: .nan}
---
record: {folder: a, strategy: sentry, keep_slices: 1.5}
---
record: {folder: a, strategy: sentry, keep_slices: -1}
---
record: {folder: a, robot: 7}
---
record: {folder: a, max_size: 7}
---
servers: {v1: {policy: reach, slot: a}, v2: {policy: reach, slot: b}}
record: {folder: bags}
router:
loop:
---
servers: {v1: {policy: reach, slot: a}, v2: {policy: reach, slot: b}}
router: {gate_folder: gates}
loop: {}
---
servers: {v1: {policy: reach, slot: a}, v2: {policy: reach, slot: b}}
record: {folder: bags}
router: {gate_folder: gates}
loop: {}
---
loop: {gates: a, recordings: b, champion: c, plan: 3}
---
loop: {gates: a, recordings: b, champion: c, gate_recordings: 0}
---
loop: {gates: a, recordings: b, champion: c, period_s: soon}
---
loop: {gates: a, recordings: b, champion: c, period_s: 2, robot: arm.yaml, plan: "50,100"}
---
loop: {gate: x}
---
# a version of the store is not a path
learner: {store: models, folder: work, seed: 3, parent: act_so101, trainer: t.yaml}
---
# the loop takes the folders of the others, and both end before what they steer
servers: {v1: {policy: reach, slot: a}, v2: {policy: reach, slot: b}}
record: {folder: bags}
router: {gate_folder: gates}
learner: {store: models, parent: models/first}
loop: {}
---
learner: {stor: models}
---
# a namespace is that of the router, and what is given counts
namespace: lab
servers: {v1: {policy: reach, slot: a}, v2: {policy: reach, slot: b}}
record: {folder: bags}
router: {gate_folder: gates}
learner: {store: models, folder: work}
loop:
  {store: s, gates: g, recordings: r, champion: c, folder: f, plan: "50,100",
   robot: arm.yaml, gate_recordings: 40, period_s: 1.5}
---
# a key that overrides a merged one is not given twice
robots:
  left: {robot: so101, local: &one {policy: "NULL", metrics_port: 9300}}
  right: {robot: so101, local: &two {<<: *one, metrics_port: 9400}}
servers: {v1: {<<: *two, metrics_port: 9500}}
---
# aliases and merged keys stay allowed
servers:
  v1: &base {policy: reach, slot: a, replicas: 2, metrics_port: 9300}
  v2: {<<: *base, slot: b, replicas: 1}
router: {metrics_port: 9100}
robots: {count: 2, simulated: true, task: reach}
---
# without slots all servers are in prod
servers: {one: {policy: "NULL", max_sessions: 3}, two: {policy: "NULL"}}
router:
---
# a shadow is beside the slots
servers: {live: {policy: "NULL"}, next: {policy: "NULL", slot: shadow}}
router: {shadow_sample_percent: 10}
---
# without a router robots know every server
servers: {one: {policy: "NULL", replicas: 2}}
robots: {simulated: true}
---
# what the file gives wins
servers: {one: {policy: "NULL", slot: a}}
router: {slot_b: [/far/policy_server], canary: {minimum_episodes: 5}}
robots:
  left:
    {simulated: true, servers: [/other], simulation: {seed: 9, image_width: 96}}
---
# a namespace is before all names
namespace: /cell_2
log_level: warn
servers: {one: {policy: "NULL"}}
router:
robots: {simulated: true}
---
# a gateway reaches the router, or the only server
gateway: {doors: [openpi], openpi: {mapping: droid.yaml, port: 9000}}
router: {}
robots: {count: 1, simulated: true}
servers: {a: {policy: "NULL", slot: a}, b: {policy: "NULL", slot: b}}
---
gateway:
servers: {one: {policy: "NULL"}}
---
# a dashboard is the verb with its flags
dashboard:
  port: 8400
  host_name: [gpu-1, gpu-1.example]
  trace_folder: traces
  tls_certificate: /etc/gpu.pem
  tls_key: /etc/gpu.key
servers: {one: {policy: "NULL"}}
---
# it reads the folders that the fleet writes
dashboard: {port: 0}
servers: {one: {policy: "NULL", trace_folder: of_server, capture_folder: captures}}
robots: {count: 1, simulated: true, trace_folder: of_robot}
---
dashboard: {port: 0}
servers: {one: {policy: "NULL", trace_folder: of_server}}
router: {trace_folder: of_router}
---
dashboard: {trace_folder: own}
servers: {one: {policy: "NULL", trace_folder: of_server, capture_folder: captures}}
---
# a recorder is the verb with its flags, and ends after the robots
namespace: lab
record: {folder: bags, strategy: sentry, robot: robot_1, slice_time: 600, keep_slices: 3}
robots: {count: 1, simulated: true, servers: [/policy_server]}
---
record: {folder: /b}
robots: {count: 1, simulated: true, servers: [/p]}
---
# a policy on a robot is tried last, over the link within the robot
namespace: cell
servers: {v1: {policy: "NULL"}}
router:
robots:
  left: {robot: so101, local: {policy: "NULL", cpu_threads: 1}}
  right: {robot: so101, servers: [/other], local: {policy: "NULL"}}
  alone: {robot: so101, trace_folder: /var/traces}
---
# the policies of several robots have ports of their own
robots: {count: 3, simulated: true, local: {policy: "NULL", metrics_port: 9500}}
"""
HOSTILE = {
    'bomb': BOMB,
    'brackets': 'servers: ' + '[' * 100_000,
    'braces': 'servers: ' + '{a: ' * 30 + '1' + '}' * 30,
    'large': 'x' * 5_000_000,
    'empty': '',
    'zero': '\0',
}


def outcome(text: str) -> str:
    """Return the processes of a file, or its refusal."""
    try:
        planned = fleet_plan(text, 'fleet.yaml', Path('/nowhere'))
    except UserError as refused:
        assert len(str(refused)) < 20_000
        return f'refused: {refused}\n'
    lines = [
        f'{each.stage.name} {each.name}: {each.node} {each.executable} {" ".join(each.arguments)}'
        for each in planned
    ]
    return '\n'.join(lines) + '\n'


def test_a_fleet_file_gives_what_was_agreed(golden, monkeypatch):
    monkeypatch.setenv('ROS_HOME', '/data/ros')
    monkeypatch.setenv('HOME', '/home/kim')
    texts = FILES.replace('NULL', NULL).strip('\n').split('\n---\n')
    given = {text: text for text in texts} | HOSTILE
    given |= {path.name: path.read_text() for path in SHIPPED}
    found = [f'{name}\n==> {outcome(text)}' for name, text in given.items()]
    golden.holds('fleet_files.txt', '\n'.join(found).replace(str(config_folder()), 'CONFIG'))
