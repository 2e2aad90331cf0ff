//! The wire between `hopd` and those who talk to it: agents, replicas, fronts, `hop`.
//!
//! [`message`] holds the messages. Who is calling is proven by MUNGE once per connection, which also carries
//! the key that authenticates every later frame; that channel and the client live beside it.

pub mod message;
