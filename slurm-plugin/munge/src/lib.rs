//! MUNGE credentials, by libmunge loaded at run time.
