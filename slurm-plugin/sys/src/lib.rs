//! Raw bindings of slurm.h, made by bindgen against the installed Slurm.
