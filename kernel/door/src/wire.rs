//! Frames of the agent channel, `docs/agent-wire.md`: JSON with attachments, framed by length.

use bytes::{Buf, BufMut, Bytes, BytesMut};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use std::io;

/// The version in both sides' first message.
pub const VERSION: u32 = 1;

const HEAD: usize = 8;
const JSON_MAX: usize = 64 << 20;
const ATTACHMENTS_MAX: usize = 4096;
const FRAME_MAX: u64 = 4 << 30;

/// One message, either way. A request has `op` and `id`; an answer `re` with `ok` or `error`; an event `op` alone.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Wire {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub op: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub id: Option<u64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub re: Option<u64>,
    #[serde(default, skip_serializing_if = "Value::is_null")]
    pub body: Value,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ok: Option<Value>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<WireError>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct WireError {
    pub kind: String,
    pub message: String,
}

/// A message with its binary attachments.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Parcel {
    pub wire: Wire,
    pub attachments: Vec<Bytes>,
}

impl Parcel {
    pub fn request(id: u64, op: &str, body: Value) -> Self {
        let wire = Wire {
            op: Some(op.to_owned()),
            id: Some(id),
            body,
            ..Wire::default()
        };
        Self {
            wire,
            attachments: Vec::new(),
        }
    }

    pub fn answer(re: u64, ok: Value) -> Self {
        let wire = Wire {
            re: Some(re),
            ok: Some(ok),
            ..Wire::default()
        };
        Self {
            wire,
            attachments: Vec::new(),
        }
    }

    pub fn refuse(re: u64, kind: &str, message: impl Into<String>) -> Self {
        let error = WireError {
            kind: kind.to_owned(),
            message: message.into(),
        };
        let wire = Wire {
            re: Some(re),
            error: Some(error),
            ..Wire::default()
        };
        Self {
            wire,
            attachments: Vec::new(),
        }
    }
}

/// The bytes of a message, in pieces.
pub fn encode(parcel: &Parcel) -> Vec<Bytes> {
    let json = serde_json::to_vec(&parcel.wire).expect("our own messages are plain data");
    let mut head = BytesMut::with_capacity(HEAD + 8 * parcel.attachments.len() + json.len());
    head.put_u32(json.len() as u32);
    head.put_u32(parcel.attachments.len() as u32);
    for attachment in &parcel.attachments {
        head.put_u64(attachment.len() as u64);
    }
    head.put_slice(&json);
    let mut chunks = vec![head.freeze()];
    chunks.extend(parcel.attachments.iter().cloned());
    chunks
}

/// The outcome of reading one message.
#[derive(Debug)]
pub enum Decoded {
    Parcel(Parcel),
    /// About so many more bytes are needed.
    Wants(usize),
}

/// Takes one message out of the received bytes.
///
/// # Errors
/// The bytes are no message, or too large a message.
pub fn decode(buf: &mut BytesMut) -> io::Result<Decoded> {
    let bad = |text: &str| io::Error::new(io::ErrorKind::InvalidData, text.to_owned());
    if buf.len() < HEAD {
        return Ok(Decoded::Wants(HEAD - buf.len()));
    }
    let word = |at: usize| u32::from_be_bytes([buf[at], buf[at + 1], buf[at + 2], buf[at + 3]]) as usize;
    let (json, count) = (word(0), word(4));
    if json > JSON_MAX || count > ATTACHMENTS_MAX {
        return Err(bad("a message is too large"));
    }
    let body = HEAD + 8 * count;
    if buf.len() < body {
        return Ok(Decoded::Wants(body - buf.len()));
    }
    let size = |i: usize| {
        let at = HEAD + 8 * i;
        u64::from_be_bytes(buf[at..at + 8].try_into().expect("eight bytes"))
    };
    let sizes: Vec<u64> = (0..count).map(size).collect();
    let attached = sizes
        .iter()
        .try_fold(0u64, |sum, s| sum.checked_add(*s))
        .filter(|s| *s <= FRAME_MAX);
    let attached = attached.ok_or_else(|| bad("a message's attachments are too large"))? as usize;
    let total = body + json + attached;
    if buf.len() < total {
        return Ok(Decoded::Wants(total - buf.len()));
    }
    buf.advance(body);
    let wire =
        serde_json::from_slice(&buf.split_to(json)).map_err(|_| bad("a message is not of this version"))?;
    let attachments = sizes.iter().map(|s| buf.split_to(*s as usize).freeze()).collect();
    Ok(Decoded::Parcel(Parcel { wire, attachments }))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_parcel_is_read_however_it_is_cut() {
        let mut parcel = Parcel::answer(3, json!({"x": [1, 2]}));
        parcel.attachments = vec![Bytes::from_static(b"abc"), Bytes::new()];
        let wire: Vec<u8> = encode(&parcel).concat();
        for cut in 1..wire.len() {
            let mut buf = BytesMut::from(&wire[..cut]);
            assert!(matches!(decode(&mut buf).unwrap(), Decoded::Wants(n) if n > 0));
            buf.extend_from_slice(&wire[cut..]);
            assert!(matches!(decode(&mut buf).unwrap(), Decoded::Parcel(p) if p == parcel));
        }
    }

    #[test]
    fn nonsense_is_refused() {
        assert!(decode(&mut BytesMut::from(&[255u8; 16][..])).is_err());
        let mut buf = BytesMut::from(&[0, 0, 0, 1, 0, 0, 0, 0, b'x'][..]);
        assert!(decode(&mut buf).is_err());
    }
}
