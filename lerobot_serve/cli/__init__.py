"""
The command `lerobot-serve`: one file a verb, each a thin layer over functions that tests call.
"""
