# SPDX-License-Identifier: Apache-2.0
"""
What clients and operators call: services, ControlSlot commands, PredictChunk goals, and the
messages they get. Called by the executor through node.py; what takes time goes to the thread
`control`.
"""
