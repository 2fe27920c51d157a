"""
The last check before a command leaves, on every path. It fails closed.

    description the actions, their limits and what forces them
    judgement   what the cage is given and what it says
    limits      position, velocity, acceleration, step and lead of every joint
    interlocks  actions that a state forces
    cage        the judge, and the latch
    start       where a robot stands before its first command
    sharing     the limits as bytes, for who judges what was never sent
"""
