"""
A policy that sees what robots see and drives none: how far it would have led them elsewhere.

    sampling       which requests it sees
    joining        request, both chunks and what was executed, brought together
    tails          what each robot was commanded right before
    divergence     how far the shadow's rows are from those
    cages          whether the robot's safety cage would have stepped in
    spread         how far two draws of the policy that drives are apart
    qualification  what was learned of each policy in shadow, on disk
    store          one file of JSON that is never half written
    comparison     all of them together, for the shadow thread
"""
