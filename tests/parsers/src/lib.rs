//! What must hold of every parser of bytes from outside, whatever the bytes. Each function panics where it doesn't.
//!
//! `fuzz/run` gives the functions to libFuzzer, and this crate's test a few thousand seeded changes of each corpus.

use bytes::BytesMut;
use hop_api::config::Config;
use hop_api::message::{FromHopd, Hello, Refusal, ToHopd, Welcome};
use hop_door::wire::{self, Decoded};
use hop_handover::cpuset::CpuSet;
use hop_handover::options::{Options, munge_socket_of, step_gpus};
use hop_handover::token::{Confirmation, Token};
use hop_protocol::link::{self, Frame, LinkError};
use hop_sim::Trace;
use hop_state::form::{ReadError, VERSION, prove};
use hop_zmtp::{FrameError, Item};
use serde::Serialize;
use serde::de::DeserializeOwned;
use std::path::Path;

/// Parses bytes, and panics where what must hold of the outcome doesn't.
pub type Parser = fn(&[u8]);

/// Each parser by the name of its corpus.
pub const PARSERS: [(&str, Parser); 10] = [
    ("agent_channel", agent_channel),
    ("agent_socket", agent_socket),
    ("configuration", configuration),
    ("control_wire", control_wire),
    ("front_link", front_link),
    ("spank_options", spank_options),
    ("state_form", state_form),
    ("token", token),
    ("trace", trace),
    ("zmtp", zmtp),
];

/// A token, as root reads one out of a credential: bytes that are one say the same when written again.
pub fn token(bytes: &[u8]) {
    if let Ok(token) = Token::from_payload(bytes) {
        assert_eq!(Token::from_payload(&token.to_payload()).ok(), Some(token));
    }
}

/// Bytes of a kernel's process on its channel or at its door: the same messages however they are cut.
pub fn agent_channel(bytes: &[u8]) {
    let (one, other) = bytes.split_at(bytes.len() / 2);
    assert_eq!(parcels(&[bytes]), parcels(&[one, other]));
}

/// The messages before the first that is none, and whether there is none of these.
fn parcels(pieces: &[&[u8]]) -> (Vec<wire::Parcel>, bool) {
    let (mut buffer, mut parcels) = (BytesMut::new(), Vec::new());
    for piece in pieces {
        buffer.extend_from_slice(piece);
        loop {
            match wire::decode(&mut buffer) {
                Ok(Decoded::Parcel(parcel)) => parcels.push(parcel),
                Ok(Decoded::Wants(more)) => {
                    assert!(more > 0, "nothing more is needed, and yet there is no message");
                    break;
                }
                Err(_) => return (parcels, false),
            }
        }
    }
    (parcels, true)
}

/// A line on the agent's socket: what can be read says the same when written again.
pub fn agent_socket(bytes: &[u8]) {
    if let Ok(said) = Confirmation::from_line(bytes) {
        assert_eq!(Confirmation::from_line(&said.to_line()).ok(), Some(said));
    }
}

/// The arguments in plugstack.conf, AuthInfo of slurm.conf, and the variables that Slurm sets for a step.
pub fn spank_options(bytes: &[u8]) {
    let Ok(text) = str::from_utf8(bytes) else { return };
    let _ = Options::parse(text.split_ascii_whitespace());
    let _ = munge_socket_of(text);
    let _ = step_gpus(text);
    if let Ok(set) = text.parse::<CpuSet>() {
        assert_eq!(set.to_string().parse::<CpuSet>().ok(), Some(set));
    }
}

/// A configuration file: any text is read, or refused with its reason.
pub fn configuration(bytes: &[u8]) {
    let Ok(text) = str::from_utf8(bytes) else { return };
    let _ = Config::parse(text, Path::new("gresshopper.toml"));
}

/// A trace of sessions, in either form: an error names a line of the text.
pub fn trace(bytes: &[u8]) {
    let Ok(text) = str::from_utf8(bytes) else { return };
    if let Err(error) = Trace::parse("fuzzed", text, 1) {
        let _ = error.to_string();
    }
}

/// Messages on the control wire, of either side: what can be read says the same when written again.
pub fn control_wire(bytes: &[u8]) {
    same_again::<Hello>(bytes);
    same_again::<Welcome>(bytes);
    same_again::<Refusal>(bytes);
    same_again::<ToHopd>(bytes);
    same_again::<FromHopd>(bytes);
}

fn same_again<T: Serialize + DeserializeOwned>(bytes: &[u8]) {
    if let Ok(message) = serde_json::from_slice::<T>(bytes) {
        let said = serde_json::to_value(&message).expect("a message holds nothing that JSON can't say");
        let again: T = serde_json::from_value(said.clone()).expect("what was written can be read");
        assert_eq!(serde_json::to_value(&again).ok(), Some(said));
    }
}

/// Bytes of a replica or a front on their link: the same frames however they are cut, and the same when written again.
pub fn front_link(bytes: &[u8]) {
    let (one, other) = bytes.split_at(bytes.len() / 2);
    let whole = frames(&[bytes]);
    assert_eq!(whole, frames(&[one, other]));
    for frame in &whole.0 {
        let again: Vec<u8> = link::encode(frame).concat();
        assert_eq!(frames(&[&again]).0, std::slice::from_ref(frame));
    }
}

/// The frames before the first malformed one, and whether there is none of these.
fn frames(pieces: &[&[u8]]) -> (Vec<Frame>, bool) {
    let (mut decoder, mut buffer) = (link::Decoder::default(), BytesMut::new());
    let mut frames = Vec::new();
    for piece in pieces {
        buffer.extend_from_slice(piece);
        loop {
            match decoder.next(&mut buffer) {
                Ok(Some(frame)) => frames.push(frame),
                Ok(None) => break,
                Err(LinkError::Malformed(_)) => return (frames, false),
                Err(other) => panic!("{other}"),
            }
        }
    }
    (frames, true)
}

/// Bytes of a ZMTP peer after the handshake: the same items, however they are cut.
pub fn zmtp(bytes: &[u8]) {
    let (one, other) = bytes.split_at(bytes.len() / 2);
    assert_eq!(items(&[bytes]), items(&[one, other]));
}

fn items(pieces: &[&[u8]]) -> Result<Vec<Item>, FrameError> {
    const MOST: u64 = 1 << 20;
    let (mut decoder, mut buffer) = (hop_zmtp::Decoder::new(MOST), BytesMut::new());
    let mut items = Vec::new();
    for piece in pieces {
        buffer.extend_from_slice(piece);
        while let Some(item) = decoder.next(&mut buffer)? {
            items.push(item);
        }
    }
    Ok(items)
}

const KEY: [u8; 32] = [7; 32];
const SLOT: usize = 512;

/// A saved state: bytes without a proof are refused, and records that a key proves are read or refused. Each line is a
/// record.
pub fn state_form(bytes: &[u8]) {
    let (head, log) = bytes.split_at(bytes.len().min(2 * SLOT));
    assert!(
        prove(head, log.to_vec(), &KEY).is_err(),
        "nobody but the owner makes a state"
    );
    let records: Vec<&[u8]> = bytes.split(|b| *b == b'\n').collect();
    let (head, log) = proven(&records);
    match prove(&head, log, &KEY) {
        Ok(_) | Err(ReadError::Refused) => {}
        Err(other) => panic!("{other}"),
    }
}

/// A log of these records, as the owner of the key writes one, with its head.
fn proven(records: &[&[u8]]) -> (Vec<u8>, Vec<u8>) {
    let mut log = b"HOPSTATE".to_vec();
    log.resize(16, 0);
    let mut mac = *blake3::keyed_hash(&KEY, &log).as_bytes();
    for text in records {
        let mut framed = (text.len() as u64).to_le_bytes().to_vec();
        framed.extend(0_u64.to_le_bytes());
        framed.extend(*text);
        mac = *blake3::keyed_hash(&KEY, &[&mac[..], &framed].concat()).as_bytes();
        log.extend(framed);
        log.extend(mac);
    }
    let text = format!(
        r#"{{"version":{VERSION},"kind":"62330000","records":{},"length":{},"mac":"{}"}}"#,
        records.len(),
        log.len(),
        blake3::Hash::from_bytes(mac).to_hex()
    );
    let proof = blake3::keyed_hash(&KEY, &[b"head", text.as_bytes()].concat());
    let mut slot = format!("{text}\n{}\n", proof.to_hex()).into_bytes();
    slot.resize(SLOT, 0);
    (slot.repeat(2), log)
}
