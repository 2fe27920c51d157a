# SPDX-License-Identifier: Apache-2.0
"""What Fast DDS logs goes to the standard error; the standard output of a verb is for programs."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from lerobot_serve.ros.process.fastdds_profile import profile_variable, shipped_profile

CODE = "import rclpy; rclpy.init(); rclpy.create_node('logs').destroy_node(); print('made')"


@pytest.mark.skipif(
    os.environ.get('RMW_IMPLEMENTATION', 'rmw_fastrtps_cpp') != 'rmw_fastrtps_cpp',
    reason='the log is of Fast DDS',
)
def test_an_error_of_the_middleware_stays_out_of_the_standard_output(tmp_path):
    # a profile after the settings of the log that Fast DDS complains about
    profile = tmp_path / 'profile.xml'
    text = shipped_profile().read_text()
    profile.write_text(text.replace('</profiles>', '<nonsense/></profiles>'))
    environment = {**os.environ, profile_variable(): str(profile)}
    result = subprocess.run(
        [sys.executable, '-c', CODE], env=environment, capture_output=True, text=True, timeout=60
    )
    assert 'nonsense' in result.stderr
    assert result.stdout == 'made\n'
