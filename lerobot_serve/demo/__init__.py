"""
The demo: a small fleet, two versions of a policy, a broken third one, and what is made of them.

    cast        who plays: every process with its parameters
    acts        what happens, act by act, and what each proves
    stage       what an act may do: start, kill, load another policy, wait
    scoreboard  what was seen, as figures over time
    node        the node that looks and the calls an operator makes
    screen      the live view of a terminal, or lines where there is none
    summary     every figure of a run, for machines and for people
    report      the same as pictures, one HTML file

Everything is done through topics, services, parameters and signals, as any operator could.
"""
