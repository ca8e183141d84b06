"""The only access to the machine: `ports` defines the interfaces, the other modules implement them.

Public: `ports` (Clock, Disk, File, Network, Random ...); `disk.RealDisk`; `machine`: clock, network, chance;
`tasks.TaskScope`.
"""
