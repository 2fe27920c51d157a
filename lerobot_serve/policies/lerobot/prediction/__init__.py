# SPDX-License-Identifier: Apache-2.0
"""
Run requests: processors of each session, batches, RTC guidance, forward pass.
The server's worker calls LeRobotPolicy.predict. Thread: `inference`.
"""
