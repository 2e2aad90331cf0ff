//! The wire between `hopd` and its clients: agents, replicas, fronts, `hop`.
//!
//! [`message`] holds the messages, [`channel`] the frames and the handshake that proves both sides by MUNGE.
//! [`handshakes`] limits unproven connections, [`client`] is a connection that reconnects, and [`config`] the
//! installation's configuration file. `docs/control-wire.md` describes the wire for authors of other clients.

pub mod channel;
pub mod client;
pub mod config;
pub mod dial;
pub mod handshakes;
pub mod identity;
pub mod message;
