//! Missing members: each front looks for them until they have joined.

use super::group::grown;
use super::*;

/// How many replicas the front is asked for.
fn asked_for(out: &[Output]) -> Vec<usize> {
    let grow = |output: &Output| match output {
        Output::ToFront(Item::Note(Note::Grow { count, .. })) => Some(*count),
        _ => None,
    };
    out.iter().filter_map(grow).collect()
}

fn joins(world: &mut World, id: u32) {
    world.input(Input::Grown {
        incarnation: Incarnation(id),
        seat: JobId(id),
        node: "n".into(),
    });
    world.commit();
}

#[test]
fn a_member_that_has_recovered_is_looked_for_no_more() {
    let mut world = grown();
    let lacks = |replicas| {
        Input::Lacks(Lack {
            replicas,
            gone: [].into(),
            failed: [].into(),
        })
    };
    world.input(lacks(1));
    assert_eq!(world.input(lacks(0)), [""; 0]);
    assert_eq!(world.input(Input::FrontChanged), [""; 0]);
}

#[test]
fn a_new_front_looks_for_the_members_that_are_still_missing() {
    let mut world = grown();
    let changed = |world: &mut World| {
        let out = world.core.handle(Input::FrontChanged, world.now);
        world.core.sanity_check();
        assert_eq!(out.len(), asked_for(&out).len(), "{out:?}");
        asked_for(&out)
    };
    assert_eq!(changed(&mut world), [0; 0], "nobody is missing");
    let lacks = Input::Lacks(Lack {
        replicas: 2,
        gone: [Incarnation(2)].into(),
        failed: [Incarnation(3)].into(),
    });
    let out = world.core.handle(lacks, world.now);
    assert_eq!(asked_for(&out), [2]);
    assert_eq!(changed(&mut world), [2]);
    assert_eq!(changed(&mut world), [2], "that front was killed, too");
    joins(&mut world, 4);
    assert_eq!(changed(&mut world), [1]);
    joins(&mut world, 5);
    assert_eq!(changed(&mut world), [0; 0]);
}
