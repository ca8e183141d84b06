"""The only door to the machine: `ports` says what there is, the other files are the real and in-memory doors.

Public: `ports` (Clock, Disk, File, Network, Random ...), `clock.LoopClock`, `disk.RealDisk`,
`network.TcpNetwork`, `chance`, `tasks.TaskScope`, and `memory` for tests.
"""
