# SPDX-License-Identifier: Apache-2.0
"""
Record requests, replies, commands and state changes of a node as JSON lines (docs/trace.md).

    format/   records, runs and incident files; shared with tools/, pure
    writing/  queue, thread and files of the writing node

Edge, router and server write traces; tools/ reads them.
"""
