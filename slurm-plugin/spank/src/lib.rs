//! The SPANK plugin gresshopper.so.
