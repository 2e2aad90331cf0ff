//! The wire between `hopd` and those who talk to it: agents, replicas, fronts, `hop`.
//!
//! [`message`] holds the messages, [`channel`] the frames and the handshake that proves both sides by MUNGE,
//! [`handshakes`] bounds those who have still to prove themselves, [`client`] is a connection that comes back by itself,
//! [`config`] the installation's one configuration file.
//! `docs/control-wire.md` describes the wire for those who write another client.

pub mod channel;
pub mod client;
pub mod config;
pub mod handshakes;
pub mod identity;
pub mod message;
