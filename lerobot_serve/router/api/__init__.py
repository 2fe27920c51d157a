# SPDX-License-Identifier: Apache-2.0
"""
The interface to clients and operators: services, ControlSlot commands, PredictChunk goals and
messages. Called by the executor through node.py; slow work is queued for the thread `control`.
"""
