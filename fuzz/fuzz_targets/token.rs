//! A token, as root reads it out of a credential: bytes that are one say the same when written again.
#![no_main]
use hop_handover::token::Token;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    if let Ok(token) = Token::from_payload(bytes) {
        assert_eq!(Token::from_payload(&token.to_payload()).ok(), Some(token));
    }
});
