"""
How many policy servers a fleet needs. docs/plan.md has it.

    demand      what robots ask, and how long a policy takes for it
    formula     the number by a formula, each term named
    sums        what a simulation has counted
    simulation  robots and servers in virtual time: queue, batches, a server that dies
    search      the smallest number of servers that holds the goals, and the curve around it
    report      a plan for people and for machines

Pure: no thread, no clock and no randomness but that of a given seed.
"""
