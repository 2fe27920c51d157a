# SPDX-License-Identifier: Apache-2.0
"""
Sends recorded observations to a policy and compares the chunks; docs/bags.md. Called by
`lerobot-serve replay`; serves the policy with the code of policy_server, in this process. One
thread; needs no ROS.
"""
