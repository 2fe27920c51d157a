"""
What happened, written down: one file of JSON lines for each run of a node. docs/trace.md has it.

    schema     the version, the bounds, what is wrong with a file
    records    one function for each kind of record; redaction: what is left of images and words
    again      what a policy needs to be asked again, in a request's record, and back
    later      fields of a record that the thread that writes works out
    encoding   a record as one line of strict JSON, and back
    parts      how the files of a run are called, and which belong together
    waiting    what was deposited and not yet written, and what was lost
    output     the file that is written: room, rotation, the oldest removed
    writer     the thread that writes; write() may be called from any thread
    settings   the parameters of a trace, alike in every node
    begin      how a node begins its trace
    reader     all parts of a run, one record after the other
    incidents  requests around trouble with their answers, byte for byte; docs/capture.md

Edge, router and server write; tools read. Knows only wire, parameters and numpy.
"""
