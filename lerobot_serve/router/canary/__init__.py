"""
A new policy goes step by step from a few of the new episodes to all of them, or back to none.

    plan        what was agreed: steps, margin, error rates
    trial       the episodes of a step, by the arm in which they began and by how they ended
    evidence    which policy is better, tested at any number of looks
    comparison  what the evidence has shown
    forecast    about how many more episodes until that is known
    facts       what was seen of both slots, and its growth since a step began
    alarms      that a share has risen above its bound, however long it was below
    guards      what rolls back at once, and what holds because it was not seen
    states      the state machine as a table
    words       the texts for operators
    canary      the canary itself
    record      what a canary knows, as plain data
    store       the canary on disk
    simulation  simulated rollouts, to see how often the above is wrong
"""
