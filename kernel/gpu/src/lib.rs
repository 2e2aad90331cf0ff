//! Off the GPU and back on.
