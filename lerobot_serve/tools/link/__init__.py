# SPDX-License-Identifier: Apache-2.0
"""
Watch a Zenoh link from outside: who is there, what each key carries, and how fast servers respond
(docs/several_machines.md). Called by `lerobot-serve link`. Only watch.py is not pure.
"""
