//! The serialised form: a golden text of each entry, and what is refused.

use crate::common::*;
use bytes::Bytes;
use hop_log::{Entry, Form, FormError, State};
use proptest::prelude::*;

fn every_entry() -> Vec<Entry> {
    vec![
        join(1),
        left(1),
        tenure(1, 1),
        at(2, ended_with(1, 1, inline(1))),
        at(3, record(1, in_folder(2), 1)),
        at(4, lost(1, 2)),
        at(5, fresh(1)),
        at(6, moved(1, 2)),
        at(7, hibernated(1)),
        settled(2, 2),
        heard(2, 2),
    ]
}

/// Version 2, as it is on disks and wires. If this test fails, the version must change.
#[test]
fn version_2_is_read_and_written_as_it_was() {
    let golden = [
        r#"{"entry":"join","incarnation":1,"seat":101,"node":"n1","hot":false}"#,
        r#"{"entry":"left","incarnation":1}"#,
        r#"{"entry":"tenure","tenure":1,"executor":1}"#,
        concat!(
            r#"{"entry":"act","tenure":1,"sequence":2,"act":{"act":"ended","cell":"cell 1","outcome":"ok","#,
            r#""last_output":2,"record":{"number":1,"payload":{"inline":{}}}}}"#
        ),
        concat!(
            r#"{"entry":"act","tenure":1,"sequence":3,"act":{"act":"record","#,
            r#""record":{"number":2,"payload":"folder"},"through":"cell 1"}}"#
        ),
        r#"{"entry":"act","tenure":1,"sequence":4,"act":{"act":"lost","cell":"cell 2","why":"node n1 is gone"}}"#,
        r#"{"entry":"act","tenure":1,"sequence":5,"act":{"act":"fresh"}}"#,
        r#"{"entry":"act","tenure":1,"sequence":6,"act":{"act":"moved","to":2}}"#,
        r#"{"entry":"act","tenure":1,"sequence":7,"act":{"act":"hibernated"}}"#,
        r#"{"entry":"settled","settled":{"tenure":2,"part":0,"upto":2,"length":200,"mac":"02"}}"#,
        r#"{"entry":"heard","cells":2,"losses":2}"#,
    ];
    for (entry, json) in every_entry().iter().zip(golden) {
        assert_eq!(serde_json::to_string(entry).unwrap(), json);
        assert_eq!(Entry::decode(entry.encode()).unwrap(), *entry);
    }
    let bytes = every_entry()[3].encode();
    assert_eq!(&bytes[..12], b"\x02e\0\0\x03\0\0\0\x9a\0\0\0");
    assert!(bytes.ends_with(b"reply 1record 1\0\xff"));
}

#[test]
fn a_state_comes_back_with_its_replies_and_records() {
    let mut log = Log::of_three();
    for (number, entry) in [ended_with(1, 1, inline(1)), lost(1, 2), ended(1, 3)]
        .iter()
        .enumerate()
    {
        log.does(entry);
        let back = State::decode(log.state.encode()).unwrap();
        assert_eq!(back, log.state, "after {number}");
        back.sanity_check().unwrap();
    }
}

#[test]
fn another_version_kind_or_field_is_refused() {
    let bytes = join(1).encode();
    let change = |at: usize, byte: u8| {
        let mut copy = bytes.to_vec();
        copy[at] = byte;
        Entry::decode(Bytes::from(copy))
    };
    assert!(matches!(change(0, 1), Err(FormError::Version(1))));
    assert!(matches!(change(1, b's'), Err(FormError::Kind(b's'))));
    assert!(matches!(change(2, 1), Err(FormError::Version(2))));
    assert!(matches!(
        change(4, 1),
        Err(FormError::Length | FormError::Json(_) | FormError::Blobs { .. })
    ));
    for json in [
        r#"{"entry":"left","incarnation":1,"why":"new"}"#,
        r#"{"entry":"later","incarnation":1}"#,
    ] {
        assert!(serde_json::from_str::<Entry>(json).is_err(), "{json}");
    }
}

#[test]
fn an_entry_that_is_cut_off_or_too_long_is_refused() {
    for entry in every_entry() {
        let bytes = entry.encode();
        for length in 0..bytes.len() {
            assert!(
                Entry::decode(bytes.slice(..length)).is_err(),
                "{entry:?} at {length}"
            );
        }
        let mut longer = bytes.to_vec();
        longer.push(0);
        assert!(Entry::decode(longer.into()).is_err());
    }
}

proptest! {
    #[test]
    fn any_bytes_are_read_or_refused(bytes in proptest::collection::vec(any::<u8>(), 0..200), json in ".{0,80}") {
        let _ = Entry::decode(Bytes::from(bytes.clone()));
        let _ = State::decode(Bytes::from(bytes));
        let mut framed = vec![2, b'e', 0, 0, 0, 0, 0, 0];
        framed.extend((json.len() as u32).to_le_bytes());
        framed.extend(json.as_bytes());
        let _ = Entry::decode(Bytes::from(framed));
    }
}

/// The same of a state, as it lies in the store.
#[test]
fn a_state_of_version_2_is_read_and_written_as_it_was() {
    let mut log = Log::of_three();
    log.does(&ended_with(1, 1, inline(1)));
    log.does(&settled(1, 1));
    log.does(&ended(1, 2));
    log.does(&tenure(2, 2));
    log.does(&lost(2, 2));
    log.does(&left(1));
    log.does(&left(3));
    let golden = concat!(
        r#"{"applied":11,"generation":0,"highest":3,"skipped":[],"#,
        r#""members":{"2":{"seat":102,"node":"n2","hot":false}},"#,
        r#""office":{"office":"held","tenure":2,"executor":2,"sequence":1},"#,
        r#""cells":3,"#,
        r#""answers":[{"number":1,"cell":"cell 1","end":{"ended":{"tenure":1,"outcome":"ok","last_output":2}}},"#,
        r#"{"number":3,"cell":"cell 2","end":{"lost":{"why":"node n1 is gone"}}}],"#,
        r#""unsettled":[],"settled_through":1,"records":1,"tail":[],"#,
        r#""settled":{"tenure":1,"part":0,"upto":1,"length":100,"mac":"01"},"#,
        r#""fresh":{"records":0},"losses":[{"tenure":2,"cells":["cell 2"]}]}"#,
    );
    assert_eq!(serde_json::to_string(&log.state).unwrap(), golden);
    assert_eq!(State::decode(log.state.encode()).unwrap(), log.state);
}
