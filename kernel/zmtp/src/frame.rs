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

/// Most frames of a message. Jupyter's messages have 6 frames and their buffers.
pub const MAX_FRAMES: usize = 65_000;

/// Most bytes of a message.
pub const MAX_MESSAGE: u64 = 4_000_000_000;

/// Frames kept of a message over a limit: routing and topic, delimiter, signature, and the four JSON parts.
const HEAD: usize = 8;

/// A whole message or a command.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Item {
    Message(Message),
    /// A message over a limit: at most its first frames. The others were read and dropped.
    Oversized(Message),
    Command {
        name: Bytes,
        body: Bytes,
    },
}

/// What makes a byte stream unreadable.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum FrameError {
    #[error("a frame has reserved flag bits set ({0:#04x})")]
    Flags(u8),
    #[error("a frame of {0} bytes is larger than the limit")]
    TooLarge(u64),
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
    /// The size of the message's frames so far.
    bytes: u64,
    /// The rest of the message is dropped.
    drops: bool,
    /// Flags and size of the frame whose body is awaited; the size left, if the body is dropped.
    header: Option<(u8, usize)>,
}

impl Decoder {
    pub fn new(max_frame: u64) -> Self {
        Self {
            max_frame,
            frames: Vec::new(),
            bytes: 0,
            drops: false,
            header: None,
        }
    }

    /// How many bytes are missing until the next frame is whole, as far as that is known. A dropped frame needs none.
    pub fn wants(&self, buffered: usize) -> usize {
        match self.header {
            Some((_, size)) if !self.drops => size.saturating_sub(buffered),
            _ => 0,
        }
    }

    /// The next message or command in `buf`; none: more bytes are needed.
    pub fn next(&mut self, buf: &mut BytesMut) -> Result<Option<Item>, FrameError> {
        loop {
            let Some((flags, size)) = self.header.map_or_else(|| parse_header(buf), |h| Ok(Some(h)))? else {
                return Ok(None);
            };
            self.header = Some((flags, size));
            let is_command = flags & COMMAND != 0;
            if is_command && size as u64 > self.max_frame {
                return Err(FrameError::TooLarge(size as u64));
            }
            if !is_command && self.is_over(size) {
                self.drops = true;
                self.frames.truncate(HEAD);
            }
            if self.drops && !is_command {
                let came = size.min(buf.len());
                buf.advance(came);
                if came < size {
                    self.header = Some((flags, size - came));
                    return Ok(None);
                }
            } else if buf.len() < size {
                return Ok(None);
            } else {
                let body = take(buf, size);
                if is_command {
                    self.header = None;
                    return parse_command(flags, body).map(Some);
                }
                self.bytes += size as u64;
                self.frames.push(body);
            }
            self.header = None;
            if flags & MORE == 0 {
                self.bytes = 0;
                let message = Message(std::mem::take(&mut self.frames));
                return Ok(Some(match std::mem::take(&mut self.drops) {
                    true => Item::Oversized(message),
                    false => Item::Message(message),
                }));
            }
        }
    }

    /// Whether the message goes over a limit with a further frame of this size.
    fn is_over(&self, size: usize) -> bool {
        let size = size as u64;
        size > self.max_frame || self.frames.len() >= MAX_FRAMES || self.bytes + size > MAX_MESSAGE
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
    fn a_command_beyond_the_limit_is_refused_before_its_body_comes() {
        let mut buf = BytesMut::from(&[LONG | COMMAND, 0, 0, 0, 1, 0, 0, 0, 0][..]);
        assert_eq!(
            Decoder::new(1 << 20).next(&mut buf),
            Err(FrameError::TooLarge(1 << 32))
        );
    }

    fn of(frames: usize, size: usize) -> Message {
        Message(vec![Bytes::from(vec![7; size]); frames])
    }

    #[test]
    fn a_message_beyond_a_limit_is_told_by_its_head_and_the_next_one_is_read() {
        let after = of(2, 3);
        for (name, message, fits) in [
            ("as many frames as may be", of(MAX_FRAMES, 1), true),
            ("a frame more", of(MAX_FRAMES + 1, 1), false),
            ("many more", of(2 * MAX_FRAMES, 0), false),
            ("a frame as large as may be", of(1, 1 << 20), true),
            ("a byte more", of(1, (1 << 20) + 1), false),
            (
                "a large one at the end",
                Message([of(3, 1).0, of(1, 3 << 20).0].concat()),
                false,
            ),
            (
                "a large one before others",
                Message([of(1, 3 << 20).0, of(20, 1).0].concat()),
                false,
            ),
        ] {
            let expected = match fits {
                true => Item::Message(message.clone()),
                false => {
                    let kept = message.0.iter().take_while(|f| f.len() <= 1 << 20).take(HEAD);
                    Item::Oversized(Message(kept.cloned().collect()))
                }
            };
            let wire: Vec<u8> = [&message, &after]
                .into_iter()
                .flat_map(encode)
                .flatten()
                .collect();
            let (mut decoder, mut buf, mut out) = (Decoder::new(1 << 20), BytesMut::new(), Vec::new());
            let mut most = 0;
            for piece in wire.chunks(60_000) {
                buf.extend_from_slice(piece);
                while let Some(item) = decoder.next(&mut buf).unwrap() {
                    out.push(item);
                }
                most = most.max(buf.len());
            }
            assert!(out == [expected, Item::Message(after.clone())], "{name}");
            assert!(
                most <= (1 << 20) + 60_000,
                "{name}: a dropped body takes no memory"
            );
        }
    }

    #[test]
    fn a_message_is_bounded_as_a_whole() {
        let mut decoder = Decoder::new(1 << 20);
        decoder.bytes = MAX_MESSAGE - 3;
        assert!(!decoder.is_over(3) && decoder.is_over(4));
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
