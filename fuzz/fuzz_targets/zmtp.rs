//! Bytes of a ZMTP peer after the handshake: the same items, however they are cut.
#![no_main]
use bytes::BytesMut;
use hop_zmtp::{Decoder, FrameError, Item};

const MOST: u64 = 1 << 20;

fn items(pieces: &[&[u8]]) -> Result<Vec<Item>, FrameError> {
    let (mut decoder, mut buffer, mut items) = (Decoder::new(MOST), BytesMut::new(), Vec::new());
    for piece in pieces {
        buffer.extend_from_slice(piece);
        while let Some(item) = decoder.next(&mut buffer)? {
            items.push(item);
        }
    }
    Ok(items)
}

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    let (one, other) = bytes.split_at(bytes.len() / 2);
    assert_eq!(items(&[bytes]), items(&[one, other]));
});
