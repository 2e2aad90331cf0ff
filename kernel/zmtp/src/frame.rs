//! Frames on the wire: a flag byte, a length of one or eight bytes, the body. Decoding needs no socket, and is tested
//! with arbitrary bytes.

use crate::Message;
use bytes::{Buf, BufMut, Bytes, BytesMut};

const MORE: u8 = 1;
const LONG: u8 = 2;
const COMMAND: u8 = 4;

/// Bodies up to this size are copied: into one buffer with their neighbours when sent, out of the read buffer when
/// received. Larger ones are passed on without a copy. The copy also keeps a small message with a long life from
/// holding a large read buffer.
const COPY_MAX: usize = 16 << 10;

/// Jupyter's messages have 6 frames and their buffers; beyond this a peer only wants our memory.
const MAX_FRAMES: usize = 1 << 16;

/// A whole message or a command.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Item {
    Message(Message),
    Command { name: Bytes, body: Bytes },
}

/// What makes a byte stream unreadable.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum FrameError {
    #[error("a frame has reserved flag bits set ({0:#04x})")]
    Flags(u8),
    #[error("a frame of {0} bytes is larger than the limit")]
    TooLarge(u64),
    #[error("a message has too many frames")]
    TooManyFrames,
    #[error("a command frame says that more frames follow")]
    CommandMore,
    #[error("a command's name doesn't fit into its frame")]
    CommandName,
}

/// Turns bytes into messages and commands.
#[derive(Debug)]
pub struct Decoder {
    max_frame: u64,
    frames: Vec<Bytes>,
    /// Flags and size of the frame whose body is awaited.
    header: Option<(u8, usize)>,
}

impl Decoder {
    pub fn new(max_frame: u64) -> Self {
        Self {
            max_frame,
            frames: Vec::new(),
            header: None,
        }
    }

    /// How many bytes are missing until the next frame is whole, as far as that is known.
    pub fn wants(&self, buffered: usize) -> usize {
        self.header.map_or(0, |(_, size)| size.saturating_sub(buffered))
    }

    /// The next message or command in `buf`; none: more bytes are needed.
    pub fn next(&mut self, buf: &mut BytesMut) -> Result<Option<Item>, FrameError> {
        loop {
            let Some((flags, size)) = self.header.map_or_else(|| parse_header(buf), |h| Ok(Some(h)))? else {
                return Ok(None);
            };
            if size as u64 > self.max_frame {
                return Err(FrameError::TooLarge(size as u64));
            }
            self.header = Some((flags, size));
            if buf.len() < size {
                return Ok(None);
            }
            self.header = None;
            let body = take(buf, size);
            if flags & COMMAND != 0 {
                return parse_command(flags, body).map(Some);
            }
            if self.frames.len() >= MAX_FRAMES {
                return Err(FrameError::TooManyFrames);
            }
            self.frames.push(body);
            if flags & MORE == 0 {
                return Ok(Some(Item::Message(Message(std::mem::take(&mut self.frames)))));
            }
        }
    }
}

fn parse_header(buf: &mut BytesMut) -> Result<Option<(u8, usize)>, FrameError> {
    let Some(&flags) = buf.first() else {
        return Ok(None);
    };
    if flags & !(MORE | LONG | COMMAND) != 0 {
        return Err(FrameError::Flags(flags));
    }
    let header = if flags & LONG != 0 { 9 } else { 2 };
    if buf.len() < header {
        return Ok(None);
    }
    buf.advance(1);
    let size = if flags & LONG != 0 {
        buf.get_u64()
    } else {
        u64::from(buf.get_u8())
    };
    let size = usize::try_from(size).map_err(|_| FrameError::TooLarge(size))?;
    Ok(Some((flags, size)))
}

fn take(buf: &mut BytesMut, size: usize) -> Bytes {
    if size > COPY_MAX {
        return buf.split_to(size).freeze();
    }
    let body = Bytes::copy_from_slice(&buf[..size]);
    buf.advance(size);
    body
}

fn parse_command(flags: u8, mut body: Bytes) -> Result<Item, FrameError> {
    if flags & MORE != 0 {
        return Err(FrameError::CommandMore);
    }
    let size = usize::from(*body.first().ok_or(FrameError::CommandName)?);
    if body.len() <= size {
        return Err(FrameError::CommandName);
    }
    body.advance(1);
    let name = body.split_to(size);
    Ok(Item::Command { name, body })
}

/// A message as chunks of bytes to write one after the other.
pub fn encode(message: &Message) -> Vec<Bytes> {
    let mut chunks = Vec::new();
    let small: usize = message.0.iter().map(Bytes::len).filter(|n| *n <= COPY_MAX).sum();
    let mut buf = BytesMut::with_capacity(small + 9 * message.0.len());
    let last = message.0.len().saturating_sub(1);
    for (i, frame) in message.0.iter().enumerate() {
        put_header(&mut buf, if i < last { MORE } else { 0 }, frame.len());
        if frame.len() <= COPY_MAX {
            buf.put_slice(frame);
        } else {
            chunks.push(buf.split().freeze());
            chunks.push(frame.clone());
        }
    }
    if !buf.is_empty() {
        chunks.push(buf.freeze());
    }
    chunks
}

fn put_header(buf: &mut BytesMut, flags: u8, size: usize) {
    match u8::try_from(size) {
        Ok(short) => buf.put_slice(&[flags, short]),
        Err(_) => {
            buf.put_u8(flags | LONG);
            buf.put_u64(size as u64);
        }
    }
}

/// A command frame.
pub(crate) fn encode_command(name: &[u8], body: &[u8]) -> Bytes {
    let mut buf = BytesMut::with_capacity(10 + name.len() + body.len());
    put_header(&mut buf, COMMAND, 1 + name.len() + body.len());
    buf.put_u8(u8::try_from(name.len()).expect("our own command names are short"));
    buf.put_slice(name);
    buf.put_slice(body);
    buf.freeze()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn message() -> impl Strategy<Value = Message> {
        let frame = prop_oneof![
            4 => proptest::collection::vec(any::<u8>(), 0..300),
            1 => proptest::collection::vec(any::<u8>(), COPY_MAX - 2..COPY_MAX + 3),
        ];
        proptest::collection::vec(frame.prop_map(Bytes::from), 1..8).prop_map(Message)
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]

        #[test]
        fn what_is_encoded_is_decoded_however_it_is_cut(messages in proptest::collection::vec(message(), 1..5), cut in 1usize..4000) {
            let wire: Vec<u8> = messages.iter().flat_map(encode).flatten().collect();
            let mut decoder = Decoder::new(1 << 20);
            let mut buf = BytesMut::new();
            let mut out = Vec::new();
            for piece in wire.chunks(cut) {
                buf.extend_from_slice(piece);
                while let Some(item) = decoder.next(&mut buf).unwrap() {
                    out.push(item);
                }
            }
            prop_assert_eq!(out, messages.into_iter().map(Item::Message).collect::<Vec<_>>());
            prop_assert!(buf.is_empty());
        }

        #[test]
        fn any_bytes_are_read_or_refused_without_a_panic(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            let mut decoder = Decoder::new(1 << 16);
            let mut buf = BytesMut::from(&bytes[..]);
            while let Ok(Some(_)) = decoder.next(&mut buf) {}
        }
    }

    #[test]
    fn a_frame_beyond_the_limit_is_refused_before_its_body_comes() {
        let mut buf = BytesMut::from(&[LONG, 0, 0, 0, 1, 0, 0, 0, 0][..]);
        assert_eq!(
            Decoder::new(1 << 20).next(&mut buf),
            Err(FrameError::TooLarge(1 << 32))
        );
    }

    #[test]
    fn a_command_is_no_message() {
        let mut buf = BytesMut::from(&encode_command(b"PING", b"\0\0ctx")[..]);
        let item = Decoder::new(1 << 20).next(&mut buf).unwrap();
        let expected = Item::Command {
            name: Bytes::from_static(b"PING"),
            body: Bytes::from_static(b"\0\0ctx"),
        };
        assert_eq!(item, Some(expected));
    }
}
