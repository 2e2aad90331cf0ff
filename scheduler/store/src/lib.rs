//! The journal of hopd and the accounting database.
