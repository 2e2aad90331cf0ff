//! ZMTP 3.0 endpoints as far as Jupyter needs them.
