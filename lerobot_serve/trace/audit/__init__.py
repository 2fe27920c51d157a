"""
Was a fleet driven safely? Judged from its traces alone. docs/audit.md has the checks.

    fields     values of a record, whatever was written there
    run        one run: where reading stands, and what its header says
    reading    which runs there are, and all of them read side by side
    bounds     the limits that a header names, read without the cage's help
    tally      what one check found in one run
    age, commands, rows        what an edge executed
    flights, ended, prefix     what was asked
    sticky     slots of episodes, joined over all runs
    whole      the trace itself
    audit      all checks over all runs, and the result

Shares no code with the cage, the queue and the router, whose work it judges. Its memory grows with
runs and clients, never with lines.
"""
