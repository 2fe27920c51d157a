"""
Traces summed up: what was asked, answered, executed and dropped, by node, slot and policy.

    sketch    quantiles of many values in little memory, with a known error
    timeline  values over time, coarser as the time grows
    lines     the lines of a run, read as far as a sum needs them
    tally     what is counted of one node, slot and policy
    collect   all records of all runs into tallies and timelines
    report    as a table and as JSON
    charts, page  as one HTML file with drawings in it

Memory grows with slots, policies and clients, never with lines.
"""
