"""
Programs that torch exported, with a sidecar that says what they expect.

    loader          loading and running one
    sidecar         its policy.json
    archive         what an archive may hold, checked before torch reads it
    check           what a program must do, tried before it serves
    normalization   from the robot's units to the program's and back
    export          writing such a folder
"""
