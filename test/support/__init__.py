# SPDX-License-Identifier: Apache-2.0
"""
Rigs and fakes shared by test/unit and test/ros, imported as `from support.edge.requester_rig
import ...`. Never imported by lerobot_serve or benchmarks.
"""
