"""
Why did a robot stutter? Told from traces alone. docs/runbook.md shows it at work.

    source     one run, read without the numbers of actions; its times by the clock of its machine
    moment     a time of day that a person named, and how times are shown
    stalls     where playing ended though nobody wanted it to
    survey     first reading: who is there, when, and where each robot stalled
    request    one request as edge, router and server tell of it; where its time went
    window     second and third reading: all that is told of the stretch in question
    happening  what stands on the time line beside requests
    figures    how many, the middle before and during, and whether it grew
    facts      what the rules ask for
    rules, causes   the table of verdicts and what each needs
    story      the whole: which window, which facts, which verdicts
    report     the story for people and for machines

Records are joined by client, session_epoch and seq, never by the clock. Clocks choose the window
and order lines for the eye; those of routers and servers are put right by the requests that both
sides tell of. Memory grows with what lies in the window and the minute before it, not with traces.
"""
