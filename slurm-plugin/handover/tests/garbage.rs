//! No bytes from outside make a parser of root's panic, hang, or take them for what they aren't.

#![allow(clippy::unwrap_used, reason = "a test that fails to prepare has failed")]

use hop_handover::cpuset::CpuSet;
use hop_handover::options::{Options, munge_socket_of, step_gpus};
use hop_handover::token::{Confirmation, Token};
use proptest::prelude::*;

/// A token with one byte changed, cut off anywhere, or with rubbish behind it.
fn damaged() -> impl Strategy<Value = Vec<u8>> {
    let whole = r#"{"v":1,"op":{"lend":{"kernel":{"uid":1000,"pid":7,"start_time":5,"seat_job":20,"seat_step":1},"gpus":1,"cpus":0}},"lease":1,"epoch":8,"pilot":10,"notify":"/x","grace_ms":1,"issued_at":1}"#;
    (0..whole.len(), any::<u8>(), 0..3_u8, any::<Vec<u8>>()).prop_map(move |(at, byte, how, rest)| {
        let mut bytes = whole.as_bytes().to_vec();
        match how {
            0 => bytes[at] = byte,
            1 => bytes.truncate(at),
            _ => bytes.extend(rest),
        }
        bytes
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    #[test]
    fn any_bytes_are_a_token_or_none(bytes in prop_oneof![any::<Vec<u8>>(), damaged()]) {
        if let Ok(token) = Token::from_payload(&bytes) {
            prop_assert_eq!(Token::from_payload(&token.to_payload()).unwrap(), token);
        }
    }

    #[test]
    fn any_line_is_a_confirmation_or_none(line in prop_oneof![".*", "\\{\"v\":1,\"body\":\\{.*\\}\\}"]) {
        if let Ok(said) = Confirmation::from_line(line.as_bytes()) {
            prop_assert_eq!(Confirmation::from_line(&said.to_line()).unwrap(), said);
        }
    }

    #[test]
    fn any_words_are_arguments_or_none(words in proptest::collection::vec("[a-z_]{0,12}=?.{0,20}", 0..8)) {
        let _ = Options::parse(words.iter().map(String::as_str));
        let _ = munge_socket_of(&words.join("\n"));
    }

    #[test]
    fn any_list_of_cores_is_bounded(text in prop_oneof![".{0,40}", "[0-9,-]{0,40}"]) {
        if let Ok(set) = text.parse::<CpuSet>() {
            prop_assert_eq!(set.to_string().parse::<CpuSet>().unwrap(), set);
        }
        let _ = step_gpus(&text);
    }
}
