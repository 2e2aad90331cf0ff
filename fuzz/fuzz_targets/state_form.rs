//! A saved state: bytes without a proof are refused, and records that a key proves are read or refused, each a line here.
#![no_main]
use hop_state::form::{ReadError, VERSION, prove};

const KEY: [u8; 32] = [7; 32];
const SLOT: usize = 512;

/// A log of these records, as the owner of the key writes one, with its head.
fn proven(records: &[&[u8]]) -> (Vec<u8>, Vec<u8>) {
    let mut log = b"HOPSTATE".to_vec();
    log.resize(16, 0);
    let mut mac = *blake3::keyed_hash(&KEY, &log).as_bytes();
    for text in records {
        let mut framed = (text.len() as u64).to_le_bytes().to_vec();
        framed.extend(0_u64.to_le_bytes());
        framed.extend(*text);
        mac = *blake3::keyed_hash(&KEY, &[&mac[..], &framed].concat()).as_bytes();
        log.extend(framed);
        log.extend(mac);
    }
    let text = format!(
        r#"{{"version":{VERSION},"kind":"62330000","records":{},"length":{},"mac":"{}"}}"#,
        records.len(),
        log.len(),
        blake3::Hash::from_bytes(mac).to_hex()
    );
    let proof = blake3::keyed_hash(&KEY, &[b"head", text.as_bytes()].concat());
    let mut slot = format!("{text}\n{}\n", proof.to_hex()).into_bytes();
    slot.resize(SLOT, 0);
    (slot.repeat(2), log)
}

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    let (head, log) = bytes.split_at(bytes.len().min(2 * SLOT));
    assert!(
        prove(head, log.to_vec(), &KEY).is_err(),
        "nobody but the owner makes a state"
    );
    let records: Vec<&[u8]> = bytes.split(|b| *b == b'\n').collect();
    let (head, log) = proven(&records);
    match prove(&head, log, &KEY) {
        Ok(_) | Err(ReadError::Refused) => {}
        Err(other) => panic!("{other}"),
    }
});
