# SPDX-License-Identifier: Apache-2.0
"""
Replace the policy of one running server, for the verb `lerobot-serve swap`.

`swap_rules` is pure; `swapping` acts through the client of an operator. The caller's thread.
"""
