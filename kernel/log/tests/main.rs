//! Tests of the entries' form, the state machine and the steward as one program, compiled and linked once.
//! A new file runs once it has its line here.

mod common;
mod form;
mod machine;
mod random;
mod steward;
