//! The wire between a front and its replicas.
