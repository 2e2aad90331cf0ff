//! Frames between front and replica, over a TLS connection dialled by the replica.
//!
//! ```text
//! kind u8 | channel u8 | parts u16 | 0 u32 | number u64 | length u64 per part | the parts
//! ```
//! All numbers are big endian. The first frame of each side is a [`Hello`] or a [`Welcome`]; every numbered frame is
//! kept by its sender ([`crate::retain`]) until the other side says [`Frame::Done`].

use crate::jupyter::{Channel, Envelope};
use crate::message::{Hello, Note, Welcome};
use crate::retain::Weigh;
use bytes::{Buf, BufMut, Bytes, BytesMut};
use hop_zmtp::Message;
use std::io;
use std::ops::RangeInclusive;
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::sync::{mpsc, watch};

const HEAD: usize = 16;

/// Each message of ZMTP fits into a frame, behind its client's identity.
const MAX_PARTS: usize = u16::MAX as usize;
const _: () = assert!(hop_zmtp::MAX_FRAMES < MAX_PARTS && hop_zmtp::MAX_MESSAGE + 0xff < MAX_FRAME);

/// One frame, in bytes. Both ends belong to the same user; the bound is against a broken peer.
const MAX_FRAME: u64 = 4 << 30;

/// Parts up to this size are copied into a single buffer with their neighbours.
const COPY_MAX: usize = 16 << 10;

/// Approximate size of one piece of writing.
const BATCH: usize = 64 << 10;

/// Each side says something this often, and gives up a connection on which nothing has come for [`SILENCE`]. A large
/// frame on a slow network is no silence.
const PING_EVERY: Duration = Duration::from_secs(2);
const SILENCE: Duration = Duration::from_secs(8);

const KIND_HELLO: u8 = 1;
const KIND_WELCOME: u8 = 2;
const KIND_JUPYTER: u8 = 3;
const KIND_NOTE: u8 = 4;
const KIND_DONE: u8 = 5;
const KIND_PING: u8 = 6;

/// What is numbered, kept, and delivered once.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Item {
    /// `identity` is the client's; empty on iopub.
    Jupyter {
        channel: Channel,
        identity: Bytes,
        message: Message,
    },
    Note(Note),
}

impl Weigh for Item {
    fn weight(&self) -> usize {
        match self {
            // The frames' bookkeeping counts too: a hundred thousand small messages are not small.
            Self::Jupyter {
                identity, message, ..
            } => identity.len() + message.size() + 64 * message.0.len(),
            Self::Note(_) => 64,
        }
    }

    /// Outputs may be dropped, except the small words on a request's begin and end, for which clients wait.
    fn droppable(&self) -> bool {
        let Self::Jupyter { channel, message, .. } = self else {
            return false;
        };
        let is_status = || {
            let envelope = Envelope::parse(message).ok()?;
            Some(envelope.header().ok()?.msg_type == "status")
        };
        *channel == Channel::Iopub && is_status() != Some(true)
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Frame {
    Hello(Hello),
    Welcome(Welcome),
    Item(u64, Item),
    /// The sender has dealt with the items of these numbers.
    Done(Vec<RangeInclusive<u64>>),
    Ping,
}

impl Frame {
    /// The weight of the frame's item, if it has one.
    fn weight(&self) -> usize {
        match self {
            Self::Item(_, item) => item.weight(),
            Self::Hello(_) | Self::Welcome(_) | Self::Done(_) | Self::Ping => 0,
        }
    }
}

/// Why a stream of frames can't be read on.
#[derive(Debug, thiserror::Error)]
pub enum LinkError {
    #[error("the connection broke")]
    Io(#[from] io::Error),
    #[error("the other side closed the connection")]
    Closed,
    #[error("the other side said nothing for {} s", SILENCE.as_secs())]
    Silent,
    #[error("a frame can't be read: {0}")]
    Malformed(&'static str),
}

/// A frame as chunks of bytes to write one after the other.
pub fn encode(frame: &Frame) -> Vec<Bytes> {
    match frame {
        Frame::Hello(hello) => encode_parts(KIND_HELLO, 0, 0, &[to_json(hello)]),
        Frame::Welcome(welcome) => encode_parts(KIND_WELCOME, 0, 0, &[to_json(welcome)]),
        Frame::Item(seq, Item::Note(note)) => encode_parts(KIND_NOTE, 0, *seq, &[to_json(note)]),
        Frame::Item(
            seq,
            Item::Jupyter {
                channel,
                identity,
                message,
            },
        ) => {
            let mut parts = Vec::with_capacity(1 + message.0.len());
            parts.push(identity.clone());
            parts.extend(message.0.iter().cloned());
            encode_parts(KIND_JUPYTER, channel.code(), *seq, &parts)
        }
        Frame::Done(ranges) => {
            let mut body = BytesMut::with_capacity(16 * ranges.len());
            for range in ranges {
                body.put_u64(*range.start());
                body.put_u64(*range.end());
            }
            encode_parts(KIND_DONE, 0, 0, &[body.freeze()])
        }
        Frame::Ping => encode_parts(KIND_PING, 0, 0, &[]),
    }
}

fn to_json<T: serde::Serialize>(value: &T) -> Bytes {
    serde_json::to_vec(value)
        .expect("our own messages are plain data")
        .into()
}

fn encode_parts(kind: u8, channel: u8, seq: u64, parts: &[Bytes]) -> Vec<Bytes> {
    let small: usize = parts.iter().map(Bytes::len).filter(|n| *n <= COPY_MAX).sum();
    let mut buf = BytesMut::with_capacity(HEAD + 8 * parts.len() + small);
    buf.put_u8(kind);
    buf.put_u8(channel);
    let count = u16::try_from(parts.len()).expect("a message of ZMTP has fewer parts");
    buf.put_u16(count);
    buf.put_u32(0);
    buf.put_u64(seq);
    for part in parts {
        buf.put_u64(part.len() as u64);
    }
    let mut chunks = Vec::new();
    for part in parts {
        if part.len() <= COPY_MAX {
            buf.put_slice(part);
        } else {
            chunks.push(buf.split().freeze());
            chunks.push(part.clone());
        }
    }
    if !buf.is_empty() {
        chunks.push(buf.freeze());
    }
    chunks
}

/// Turns bytes into frames.
#[derive(Debug, Default)]
pub struct Decoder {
    head: Option<Head>,
}

#[derive(Debug)]
struct Head {
    kind: u8,
    channel: u8,
    seq: u64,
    sizes: Vec<usize>,
    total: usize,
}

impl Decoder {
    /// How many bytes are missing until the next frame is whole, as far as that is known.
    pub fn wants(&self, buffered: usize) -> usize {
        self.head.as_ref().map_or(0, |h| h.total.saturating_sub(buffered))
    }

    /// The next frame in `buf`; none: more bytes are needed.
    pub fn next(&mut self, buf: &mut BytesMut) -> Result<Option<Frame>, LinkError> {
        if self.head.is_none() {
            self.head = parse_head(buf)?;
        }
        let Some(head) = self.head.take_if(|h| buf.len() >= h.total) else {
            return Ok(None);
        };
        let parts = head.sizes.iter().map(|size| take(buf, *size)).collect();
        frame(&head, parts).map(Some)
    }
}

fn parse_head(buf: &mut BytesMut) -> Result<Option<Head>, LinkError> {
    if buf.len() < HEAD {
        return Ok(None);
    }
    let count = usize::from(u16::from_be_bytes([buf[2], buf[3]]));
    if buf.len() < HEAD + 8 * count {
        return Ok(None);
    }
    let (kind, channel) = (buf.get_u8(), buf.get_u8());
    buf.advance(6);
    let seq = buf.get_u64();
    let sizes: Vec<u64> = (0..count).map(|_| buf.get_u64()).collect();
    let total = sizes.iter().try_fold(0u64, |sum, size| sum.checked_add(*size));
    let total = total
        .filter(|t| *t <= MAX_FRAME)
        .ok_or(LinkError::Malformed("it is too large"))?;
    Ok(Some(Head {
        kind,
        channel,
        seq,
        sizes: sizes.into_iter().map(|s| s as usize).collect(),
        total: total as usize,
    }))
}

/// Small parts are copied: a long-lived part then doesn't keep a whole read buffer.
fn take(buf: &mut BytesMut, size: usize) -> Bytes {
    if size > COPY_MAX {
        return buf.split_to(size).freeze();
    }
    let part = Bytes::copy_from_slice(&buf[..size]);
    buf.advance(size);
    part
}

fn frame(head: &Head, parts: Vec<Bytes>) -> Result<Frame, LinkError> {
    let first = || parts.first().ok_or(LinkError::Malformed("it has no body"));
    Ok(match head.kind {
        KIND_HELLO => Frame::Hello(from_json(first()?)?),
        KIND_WELCOME => Frame::Welcome(from_json(first()?)?),
        KIND_NOTE => Frame::Item(head.seq, Item::Note(from_json(first()?)?)),
        KIND_JUPYTER => {
            let channel = Channel::from_code(head.channel).ok_or(LinkError::Malformed("no such channel"))?;
            let mut parts = parts.into_iter();
            let identity = parts.next().ok_or(LinkError::Malformed("it has no identity"))?;
            let message = Message(parts.collect());
            Frame::Item(
                head.seq,
                Item::Jupyter {
                    channel,
                    identity,
                    message,
                },
            )
        }
        KIND_DONE => Frame::Done(done_ranges(first()?)),
        KIND_PING => Frame::Ping,
        _ => return Err(LinkError::Malformed("no such kind")),
    })
}

fn from_json<T: serde::de::DeserializeOwned>(bytes: &Bytes) -> Result<T, LinkError> {
    serde_json::from_slice(bytes).map_err(|_| LinkError::Malformed("its JSON is not of this version"))
}

fn done_ranges(body: &Bytes) -> Vec<RangeInclusive<u64>> {
    let word = |b: &[u8]| u64::from_be_bytes(b.try_into().expect("chunks of eight"));
    body.chunks_exact(16)
        .map(|pair| word(&pair[..8])..=word(&pair[8..]))
        .collect()
}

/// A connection on which frames can be read and written one at a time: for the first frames of each side.
#[derive(Debug)]
pub struct Link<S> {
    stream: S,
    decoder: Decoder,
    buf: BytesMut,
}

impl<S: AsyncRead + AsyncWrite + Unpin> Link<S> {
    pub fn new(stream: S) -> Self {
        Self {
            stream,
            decoder: Decoder::default(),
            buf: BytesMut::with_capacity(64 << 10),
        }
    }

    pub async fn write(&mut self, frame: &Frame) -> Result<(), LinkError> {
        write_frame(&mut self.stream, frame).await?;
        Ok(self.stream.flush().await?)
    }

    pub async fn read(&mut self) -> Result<Frame, LinkError> {
        // The caller has its own limit for the first frames.
        read_frame(&mut self.stream, &mut self.decoder, &mut self.buf, Duration::MAX).await
    }

    /// Carries frames both ways until the connection ends; says why it did. Ends well when `out` is closed and all of
    /// it was written. `written` tells the weight of all items that were written.
    pub async fn pump(
        self,
        out: mpsc::UnboundedReceiver<Frame>,
        input: mpsc::Sender<Frame>,
        written: watch::Sender<usize>,
    ) -> Result<(), LinkError> {
        let Self {
            stream,
            mut decoder,
            mut buf,
        } = self;
        let (mut read, write) = tokio::io::split(stream);
        let reading = async {
            loop {
                let frame = read_frame(&mut read, &mut decoder, &mut buf, SILENCE).await?;
                if frame != Frame::Ping && input.send(frame).await.is_err() {
                    return Ok(());
                }
            }
        };
        tokio::select! {
            end = reading => end,
            end = writing(write, out, written) => end,
        }
    }
}

async fn writing<W: AsyncWrite + Unpin>(
    mut write: W,
    mut out: mpsc::UnboundedReceiver<Frame>,
    written: watch::Sender<usize>,
) -> Result<(), LinkError> {
    loop {
        let frame = match out.try_recv() {
            Ok(frame) => Some(frame),
            Err(mpsc::error::TryRecvError::Disconnected) => None,
            Err(mpsc::error::TryRecvError::Empty) => {
                write.flush().await?;
                tokio::time::timeout(PING_EVERY, out.recv())
                    .await
                    .unwrap_or(Some(Frame::Ping))
            }
        };
        let Some(frame) = frame else {
            write.flush().await?;
            // The peer may be gone already; all was written that could be.
            let _ = write.shutdown().await;
            return Ok(());
        };
        let weight = write_batch(&mut write, frame, &mut out).await?;
        written.send_modify(|written| *written += weight);
    }
}

/// Writes a frame, together with small frames in line behind: each write is a TLS record and a system call. Returns the
/// weight of their items.
async fn write_batch<W: AsyncWrite + Unpin>(
    write: &mut W,
    first: Frame,
    out: &mut mpsc::UnboundedReceiver<Frame>,
) -> io::Result<usize> {
    let mut batch = BytesMut::new();
    let mut next = Some(first);
    let mut weight = 0;
    while let Some(frame) = next {
        weight += frame.weight();
        for chunk in encode(&frame) {
            if chunk.len() > COPY_MAX {
                write.write_all(&batch.split()).await?;
                write.write_all(&chunk).await?;
            } else {
                batch.extend_from_slice(&chunk);
            }
        }
        next = (batch.len() < BATCH).then(|| out.try_recv().ok()).flatten();
    }
    write.write_all(&batch).await?;
    Ok(weight)
}

async fn write_frame<W: AsyncWrite + Unpin>(write: &mut W, frame: &Frame) -> io::Result<()> {
    for chunk in encode(frame) {
        write.write_all(&chunk).await?;
    }
    Ok(())
}

/// Reads the next frame. `silence` is the longest time without a byte.
async fn read_frame<R: AsyncRead + Unpin>(
    read: &mut R,
    decoder: &mut Decoder,
    buf: &mut BytesMut,
    silence: Duration,
) -> Result<Frame, LinkError> {
    loop {
        if let Some(frame) = decoder.next(buf)? {
            return Ok(frame);
        }
        buf.reserve(decoder.wants(buf.len()).max(64 << 10));
        let came = tokio::time::timeout(silence, read.read_buf(buf)).await;
        if came.map_err(|_| LinkError::Silent)?? == 0 {
            return Err(LinkError::Closed);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use tokio::io::DuplexStream;

    fn frames() -> impl Strategy<Value = Vec<Frame>> {
        let part = prop_oneof![
            4 => proptest::collection::vec(any::<u8>(), 0..100),
            1 => proptest::collection::vec(any::<u8>(), COPY_MAX..COPY_MAX + 2),
        ];
        let jupyter = (
            any::<u64>(),
            0u8..4,
            proptest::collection::vec(part.prop_map(Bytes::from), 0..6),
        )
            .prop_map(|(seq, channel, parts)| {
                let item = Item::Jupyter {
                    channel: Channel::from_code(channel).unwrap(),
                    identity: Bytes::from_static(b"me"),
                    message: Message(parts),
                };
                Frame::Item(seq, item)
            });
        let other = prop_oneof![
            Just(Frame::Ping),
            Just(Frame::Done(vec![1..=2, 5..=9])),
            Just(Frame::Item(7, Item::Note(Note::KernelUp { pid: 3 }))),
        ];
        proptest::collection::vec(prop_oneof![jupyter, other], 1..6)
    }

    /// A network that carries so many bytes per second one way, and is as fast as wanted the other way.
    async fn slow(from: DuplexStream, to: DuplexStream, per_second: usize) {
        let (mut from_read, mut from_write) = tokio::io::split(from);
        let (mut to_read, mut to_write) = tokio::io::split(to);
        let there = async {
            let mut buf = vec![0; per_second / 10];
            while let Ok(count @ 1..) = from_read.read(&mut buf).await {
                tokio::time::sleep(Duration::from_millis(100)).await;
                to_write.write_all(&buf[..count]).await.unwrap();
            }
        };
        let back = tokio::io::copy(&mut to_read, &mut from_write);
        let _ = tokio::join!(there, back);
    }

    #[tokio::test(start_paused = true)]
    async fn a_frame_that_comes_slowly_comes_once_and_the_link_holds() {
        let room = 100_000;
        let ((ours, near), (far, theirs)) = (tokio::io::duplex(room), tokio::io::duplex(room));
        let network = tokio::spawn(slow(near, far, 1_000_000));
        let ends = |stream| {
            let (out, from_out) = mpsc::unbounded_channel();
            let (input, frames) = mpsc::channel(8);
            let (written, _) = watch::channel(0);
            let pump = tokio::spawn(Link::new(stream).pump(from_out, input, written));
            (out, frames, pump)
        };
        let (out, _their_words, ours) = ends(ours);
        let (_our_words, mut frames, theirs) = ends(theirs);
        let figure = Frame::Item(
            1,
            Item::Jupyter {
                channel: Channel::Iopub,
                identity: Bytes::new(),
                message: Message(vec![vec![7; 20_000_000].into()]),
            },
        );
        let behind = Frame::Done(vec![1..=1]);
        out.send(figure.clone()).unwrap();
        out.send(behind.clone()).unwrap();
        let arrived = [frames.recv().await, frames.recv().await];
        assert!(arrived == [Some(figure), Some(behind)], "each once, in order");
        assert!(!ours.is_finished() && !theirs.is_finished());
        network.abort();
    }

    #[tokio::test(start_paused = true)]
    async fn a_link_on_which_nothing_comes_is_given_up_in_a_frames_middle_too() {
        for said in [0, 10, 30] {
            let (mut peer, stream) = tokio::io::duplex(1000);
            let bytes: Vec<u8> = encode(&Frame::Done(vec![1..=1])).concat();
            peer.write_all(&bytes[..said]).await.unwrap();
            let (_out, from_out) = mpsc::unbounded_channel();
            let (input, _frames) = mpsc::channel(8);
            let (written, _) = watch::channel(0);
            let end = Link::new(stream).pump(from_out, input, written).await;
            assert!(matches!(end, Err(LinkError::Silent)), "{end:?}");
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]

        #[test]
        fn what_is_encoded_is_decoded_however_it_is_cut(frames in frames(), cut in 1usize..3000) {
            let wire: Vec<u8> = frames.iter().flat_map(encode).flatten().collect();
            let (mut decoder, mut buf, mut out) = (Decoder::default(), BytesMut::new(), Vec::new());
            for piece in wire.chunks(cut) {
                buf.extend_from_slice(piece);
                while let Some(frame) = decoder.next(&mut buf).unwrap() {
                    out.push(frame);
                }
            }
            prop_assert_eq!(out, frames);
        }

        #[test]
        fn any_bytes_are_read_or_refused_without_a_panic(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            let (mut decoder, mut buf) = (Decoder::default(), BytesMut::from(&bytes[..]));
            while let Ok(Some(_)) = decoder.next(&mut buf) {}
        }
    }
}
