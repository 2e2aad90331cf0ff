//! A trace of sessions, in either form: an error names a line of the text.
#![no_main]
use hop_sim::Trace;

libfuzzer_sys::fuzz_target!(|text: &str| {
    if let Err(error) = Trace::parse("fuzzed", text, 1) {
        let _ = error.to_string();
    }
});
