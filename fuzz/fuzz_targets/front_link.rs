//! Bytes of a replica or a front on their link: the same frames however they are cut, and the same when written again.
#![no_main]
use bytes::BytesMut;
use hop_protocol::link::{Decoder, Frame, LinkError, encode};

fn frames(pieces: &[&[u8]]) -> (Vec<Frame>, bool) {
    let (mut decoder, mut buffer, mut frames) = (Decoder::default(), BytesMut::new(), Vec::new());
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

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    let (one, other) = bytes.split_at(bytes.len() / 2);
    let whole = frames(&[bytes]);
    assert_eq!(whole, frames(&[one, other]));
    for frame in &whole.0 {
        let again: Vec<u8> = encode(frame).concat();
        assert_eq!(frames(&[&again]).0, std::slice::from_ref(frame));
    }
});
