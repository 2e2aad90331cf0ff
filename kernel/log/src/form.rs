//! The serialised form of entries and states: JSON, and beside it the raw bytes.
//!
//! ```text
//! version u8 | kind u8 | 0 u16 | blobs u32 | length of the JSON u32 | length of each blob u32 | the JSON | the blobs
//! ```
//! Numbers are little-endian. A reader refuses an unknown version, kind or field: a guessing member would differ
//! from the others. A change of an entry's or the state's fields changes [`VERSION`].

use crate::entry::{Act, Entry};
use crate::record::{Payload, Record};
use crate::state::{Answer, End, State};
use bytes::{Buf, BufMut, Bytes, BytesMut};
use serde::Serialize;
use serde::de::DeserializeOwned;

/// The version of both forms.
const VERSION: u8 = 2;

const HEAD: usize = 12;

/// Bytes without an entry or state of this version.
#[derive(Debug, thiserror::Error)]
pub enum FormError {
    #[error("it is of version {0}, this release reads version {VERSION}")]
    Version(u8),
    #[error("it is of kind {:?}", char::from(*.0))]
    Kind(u8),
    #[error("it is cut off or too long")]
    Length,
    #[error("its JSON is not of this version")]
    Json(#[from] serde_json::Error),
    #[error("it has {there} blobs where its JSON needs {needed}")]
    Blobs { there: usize, needed: usize },
}

/// A type with a serialised form of its own.
pub trait Form: Serialize + DeserializeOwned {
    #[doc(hidden)]
    const KIND: u8;

    /// Every blob, in an order decided by the JSON part alone.
    #[doc(hidden)]
    fn blobs(&mut self) -> Vec<&mut Bytes>;

    /// The value as bytes.
    fn encode(&self) -> Bytes
    where
        Self: Clone,
    {
        let json = serde_json::to_vec(self).expect("plain data");
        let mut copy = self.clone();
        let blobs = copy.blobs();
        let size: usize = blobs.iter().map(|b| 4 + b.len()).sum();
        let mut out = BytesMut::with_capacity(HEAD + size + json.len());
        out.put_u8(VERSION);
        out.put_u8(Self::KIND);
        out.put_u16_le(0);
        out.put_u32_le(length(blobs.len()));
        out.put_u32_le(length(json.len()));
        for blob in &blobs {
            out.put_u32_le(length(blob.len()));
        }
        out.put_slice(&json);
        for blob in blobs {
            out.put_slice(blob);
        }
        out.freeze()
    }

    /// Reads the bytes of [`Form::encode`]. Blobs share the memory of `bytes`.
    ///
    /// # Errors
    /// If the bytes are of another version or damaged.
    fn decode(mut bytes: Bytes) -> Result<Self, FormError> {
        let (blobs, json) = head::<Self>(&mut bytes)?;
        let lengths = take(&mut bytes, blobs.checked_mul(4).ok_or(FormError::Length)?)?;
        let mut value: Self = serde_json::from_slice(&take(&mut bytes, json)?)?;
        let places = value.blobs();
        if places.len() != blobs {
            return Err(FormError::Blobs {
                there: blobs,
                needed: places.len(),
            });
        }
        for (place, length) in places.into_iter().zip(lengths.chunks_exact(4)) {
            let length = u32::from_le_bytes(length.try_into().expect("chunks of four"));
            *place = take(&mut bytes, length as usize)?;
        }
        if bytes.is_empty() {
            Ok(value)
        } else {
            Err(FormError::Length)
        }
    }
}

fn length(bytes: usize) -> u32 {
    u32::try_from(bytes).expect("a record is far below 4 GiB: large content is in the store")
}

fn head<T: Form>(bytes: &mut Bytes) -> Result<(usize, usize), FormError> {
    let mut head = take(bytes, HEAD)?;
    let (version, kind, reserved) = (head.get_u8(), head.get_u8(), head.get_u16_le());
    if version != VERSION || reserved != 0 {
        return Err(FormError::Version(version));
    }
    if kind != T::KIND {
        return Err(FormError::Kind(kind));
    }
    Ok((head.get_u32_le() as usize, head.get_u32_le() as usize))
}

fn take(bytes: &mut Bytes, length: usize) -> Result<Bytes, FormError> {
    if bytes.len() < length {
        return Err(FormError::Length);
    }
    Ok(bytes.split_to(length))
}

impl Form for Entry {
    const KIND: u8 = b'e';

    fn blobs(&mut self) -> Vec<&mut Bytes> {
        let Self::Act { act, .. } = self else {
            return Vec::new();
        };
        match act {
            Act::Ended { reply, record, .. } => {
                let mut blobs = vec![reply];
                blobs.extend(record.iter_mut().flat_map(record_blobs));
                blobs
            }
            Act::Record { record, .. } => record_blobs(record),
            _ => Vec::new(),
        }
    }
}

impl Form for State {
    const KIND: u8 = b's';

    fn blobs(&mut self) -> Vec<&mut Bytes> {
        let replies = self.answers.iter_mut().filter_map(reply);
        replies
            .chain(self.tail.iter_mut().flat_map(|t| record_blobs(&mut t.record)))
            .collect()
    }
}

fn reply(answer: &mut Answer) -> Option<&mut Bytes> {
    match &mut answer.end {
        End::Ended { reply, .. } => Some(reply),
        End::Lost { .. } => None,
    }
}

fn record_blobs(record: &mut Record) -> Vec<&mut Bytes> {
    match &mut record.payload {
        Payload::Inline { text, body } => vec![text, body],
        Payload::Folder => Vec::new(),
    }
}
