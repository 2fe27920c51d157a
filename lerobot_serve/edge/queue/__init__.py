"""
The actions that are left to play, and what depends on how long an answer takes.

    actions        the queue itself
    delay          how many rows of a new chunk are skipped
    interpolation  several commands for each action
    latency        how long answers took lately, server by server
"""
