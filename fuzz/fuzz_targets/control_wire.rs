//! Messages on the control wire, of either side: what can be read says the same when it is written again.
#![no_main]
use hop_api::message::{FromHopd, Hello, Refusal, ToHopd, Welcome};
use serde::Serialize;
use serde::de::DeserializeOwned;

fn same_again<T: Serialize + DeserializeOwned>(bytes: &[u8]) {
    if let Ok(message) = serde_json::from_slice::<T>(bytes) {
        let said = serde_json::to_value(&message).expect("a message holds nothing that JSON can't say");
        let again: T = serde_json::from_value(said.clone()).expect("what was written can be read");
        assert_eq!(serde_json::to_value(&again).ok(), Some(said));
    }
}

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    same_again::<Hello>(bytes);
    same_again::<Welcome>(bytes);
    same_again::<Refusal>(bytes);
    same_again::<ToHopd>(bytes);
    same_again::<FromHopd>(bytes);
});
