"""
LeRobot policy directories, served through LeRobot's own loader, networks and processors.

Read `loader` first. A directory is checked before anything in it is loaded (`folder`, `features`,
`statistics`). Then `compat` brings LeRobot in, `network` and `pipelines` load what is there, and
`trial` asks for a first prediction. `policy` answers requests, through `batches` and `inference`.
"""
