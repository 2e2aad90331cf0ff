//! The content-addressed store.
