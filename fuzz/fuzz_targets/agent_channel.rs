#![no_main]
libfuzzer_sys::fuzz_target!(|bytes: &[u8]| hop_parsers::agent_channel(bytes));
