"""
Record requests, replies, commands and changes of a node as JSON lines (docs/trace.md).

    format/   what a line, a run and an incident file are; shared with tools/, pure
    writing/  queue, thread and files of the node that writes

Edge, router and server write; tools/ reads.
"""
