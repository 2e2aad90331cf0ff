//! A line on the agent's socket.
#![no_main]
use hop_handover::token::Confirmation;

libfuzzer_sys::fuzz_target!(|line: &str| {
    if let Ok(said) = Confirmation::from_line(line) {
        assert_eq!(Confirmation::from_line(&said.to_line()).ok(), Some(said));
    }
});
