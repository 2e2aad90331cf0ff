//! A safe layer over Slurm: submit, allocate, steps, nodes, jobs, GRES, hostlists.
