from __future__ import annotations

import time

from lerobot_serve_interfaces.msg import Observation


def test_try(rig):
    rig.start(
        policy_kind='null', policy_path='joints=6,chunk=30,cameras=,fps=30', status_period_s=60.0
    )
    for _ in range(10):
        t = time.monotonic()
        g = rig.predict(Observation(observation_steps=1, state=[0.1] * 6))
        t1 = time.monotonic()
        r = g.result()
        print('PC', r[0], t1 - t, time.monotonic() - t1)
    p = rig.fleet.processes['policy_server']


def cpu(pid):
    f = open(f'/proc/{pid}/stat').read().rpartition(')')[2].split()
    return (int(f[11]) + int(f[12])) / 100


def test_cpu(rig):
    rig.steering.turns.close_gate()
    p = rig.start(policy_kind='steered', status_period_s=60.0)
    a = cpu(p.pid)
    time.sleep(2)
    print('idle cpu', cpu(p.pid) - a)
    g = rig.predict(Observation(observation_steps=1, state=[0.1] * 6))
    a = cpu(p.pid)
    time.sleep(2)
    print('waiting cpu', cpu(p.pid) - a)
    rig.steering.turns.open_gate()
    t = time.monotonic()
    print(g.result()[0], time.monotonic() - t)
