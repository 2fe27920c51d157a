"""
A new policy goes step by step from a few of the new episodes to all of them, or back to none.

    plan        what was agreed: steps, margin, error rates
    evidence    which policy is better, judged as often as one likes
    forecast    about how many more episodes until that is known
    facts       what was seen of both slots, and its growth since a step began
    guards      what rolls back at once, and what holds because it was not seen
    states      the state machine as a table
    words       what is told to a person
    canary      the canary itself
    store       the canary on disk
    simulation  rollouts that never happened, to see how often the above is wrong
"""
