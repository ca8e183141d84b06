"""The only door to the machine: `ports` says what there is, the other files are the real doors.

Public: `ports` (Clock, Disk, File, Network, Random ...); `disk.RealDisk`; `machine`: clock, network, chance;
`tasks.TaskScope`.
"""
