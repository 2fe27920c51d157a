"""
What a router knows across restarts: one SQLite file in its state folder.

    schema   the tables, their migrations, the digests of rows
    content  what a file holds, and what damage to it comes to
    store    opens, checks, reads and writes the file
    writer   the thread that writes, so that no request waits for the disk
"""
