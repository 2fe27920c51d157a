# SPDX-License-Identifier: Apache-2.0
"""The client needs neither ROS nor torch: what it imports, in a process of its own."""

from __future__ import annotations

import json
import os
import subprocess
import sys

LIMIT_S = 60.0
# a prediction, too: nothing is imported late
CODE = """
import asyncio, json, sys
import numpy
from lerobot_serve.client import AsyncPolicyClient, PolicyClient
from lerobot_serve.client.fake_server import CAMERAS, FakeServer
images = {CAMERAS[0].name: numpy.zeros((4, 6, 3), numpy.uint8)}
for codec in ('raw', 'jpeg'):
    with PolicyClient(FakeServer().connection()) as client:
        with client.open(codec=codec) as session:
            assert session.predict((0, 0), images).actions.shape == (3, 2)
try:
    PolicyClient.connect(endpoints='tcp/127.0.0.1:1', timeout_s=0.1)
except Exception as error:
    print(error, file=sys.stderr)
print(json.dumps(sorted({name.split('.')[0] for name in sys.modules})))
"""
FORBIDDEN = {
    *('rclpy', 'lerobot_serve_interfaces', 'rosidl_parser', 'rosidl_runtime_py'),
    *('torch', 'lerobot', 'cv2', 'yaml', 'aiohttp', 'grpc', 'zmq', 'prometheus_client'),
}


def imported() -> set[str]:
    process = subprocess.run(
        [sys.executable, '-c', CODE],
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        env={**os.environ},
        check=False,
    )
    assert process.returncode == 0, process.stderr
    assert 'nothing answers at tcp/127.0.0.1:1' in process.stderr
    return set(json.loads(process.stdout))


def test_the_client_imports_neither_ros_nor_torch():
    modules = imported()
    assert {'lerobot_serve', 'zenoh', 'numpy', 'simplejpeg'} <= modules
    assert not modules & FORBIDDEN
