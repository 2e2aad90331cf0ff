//! A configuration file: what can be read is refused with its key, or obeys its own rules.
#![no_main]
use hop_api::config::Config;
use std::path::Path;

libfuzzer_sys::fuzz_target!(|text: &str| {
    let _ = Config::parse(text, Path::new("gresshopper.toml"));
});
