"""
What policy kinds share while they predict: hidden states by session, seeds, request inputs.
Called by the policies. Thread: `inference`.
"""
