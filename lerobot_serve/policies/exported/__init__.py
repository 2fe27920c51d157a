"""
Programs that torch exported, with a sidecar that says what they expect.

    loader          loading and running one
    sidecar         its policy.json
    programs        program.pt2 and program.onnx behind one call
    archive, check  what a program.pt2 may hold, read before torch reads it
    onnx_schema     what a program.onnx may hold,
    onnx_file       read before onnxruntime reads it,
    onnx_session    tried in a child process, and run
    normalization   from the robot's units to the program's and back
    export          writing such a folder
"""
