# SPDX-License-Identifier: Apache-2.0
"""
The format of traces and incident files: one function for each record kind, JSON encoding,
redaction, file names. Pure functions; any thread. Called by the recorders of the nodes and by
tools/.
"""
