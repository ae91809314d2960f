"""Sweeps: training a list of runs, on this machine or on a SLURM cluster.

Every run is trained by `process` in its own process and leaves all results in its directory, from
which `grid` reads the progress. `local` and `slurm` decide where and when the processes run.

Nothing is imported here: an element of a SLURM job starts without waiting for torch.
"""
