//! Large replies: their clients get them whole, and the log has them shortened.

use super::durable::{capturing, durably, state};
use super::*;
use hop_log::Act;

/// The kernel's reply with this content, as it left for the client, and the bytes of its entry in the log.
fn replied(world: &mut World, cell: &str, content: &Value) -> (Message, usize, Entry) {
    world.run(cell, Value::Null);
    let parent = json!({"msg_id": cell, "msg_type": "execute_request"}).to_string();
    let metadata = json!({"gresshopper": {"lease": 5}});
    let reply = world
        .client
        .write("execute_reply", &parent.into(), &metadata, content, world.now);
    let (identity, message) = (Bytes::from_static(b"me"), reply.message());
    let input = Input::FromKernel {
        channel: Channel::Shell,
        identity,
        message: message.clone(),
    };
    let mut out = world.core.handle(input, world.now);
    let proposed = out.iter().find_map(|o| match o {
        Output::Propose(entry) => Some(entry.clone()),
        _ => None,
    });
    let entry = proposed.unwrap();
    let index = world.core.applied_index().next();
    let applied = Input::Applied {
        index,
        entry: entry.clone(),
    };
    out = world.core.handle(applied, world.now);
    world.core.sanity_check();
    let [
        Output::ToFront(Item::Note(_)),
        Output::ToFront(Item::Jupyter { message: told, .. }),
    ] = &out[..]
    else {
        panic!("{out:?}");
    };
    assert!(*told == message, "its client gets all of it");
    (message, hop_log::Form::encode(&entry).len(), entry)
}

#[test]
fn a_large_reply_is_shortened_in_the_log_alone() {
    let large = "x".repeat(20 << 20);
    let error = json!({
        "status": "error", "execution_count": 7, "ename": "ValueError", "evalue": large,
        "traceback": ["above", large, "below"],
    });
    let mut world = capturing();
    let (_, bytes, entry) = replied(&mut world, "a", &error);
    assert!(bytes < 100_000, "{bytes}");
    // The next executor answers from the log.
    let mut log = state(1);
    log.apply(log.applied().next(), &entry).unwrap();
    let mut next = World::new(durably(log));
    let (cell, tenure) = ("a".into(), Tenure(1));
    next.input(Input::HandedBefore {
        cell,
        tenure,
        behind: None,
        lacks: false,
    });
    let out = next.run("a", Value::Null);
    assert!(
        out.contains(&"front: execute_reply a error ValueError lease 5".into()),
        "{out:?}"
    );

    let ok = json!({"status": "ok", "execution_count": 7, "user_expressions": {"a": large}, "payload": []});
    let (_, bytes, entry) = replied(&mut capturing(), "a", &ok);
    assert!(bytes < 100_000, "{bytes}");
    let Entry::Act {
        act: Act::Ended { reply, .. },
        ..
    } = entry
    else {
        panic!("{entry:?}");
    };
    let kept = Envelope::parse(&journal::unpack(reply)).unwrap();
    let content: Value = serde_json::from_slice(&kept.content).unwrap();
    let whole = json!({"status": "ok", "execution_count": 7, "user_expressions": {}, "payload": []});
    assert_eq!(content, whole);
}

#[test]
fn a_reply_of_the_usual_size_is_in_the_log_as_it_is() {
    let content =
        json!({"status": "ok", "execution_count": 7, "user_expressions": {"a": "x".repeat(900_000)}});
    let (message, _, entry) = replied(&mut capturing(), "a", &content);
    let Entry::Act {
        act: Act::Ended { reply, .. },
        ..
    } = entry
    else {
        panic!("{entry:?}");
    };
    assert!(journal::unpack(reply) == message);
}
