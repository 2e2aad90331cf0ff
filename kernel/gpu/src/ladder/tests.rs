use super::*;
use proptest::prelude::*;

const GIB: u64 = 1 << 30;

fn easy() -> Found {
    Found {
        touched: true,
        device_bytes: Some(5 * GIB),
        devices: vec![GpuUuid([1; 16])],
        inside: Some(Inside {
            frameworks_bytes: 4 * GIB,
            managed: Known::No,
            ipc: Known::No,
            ..Inside::default()
        }),
        driver: Ok(DriverFound {
            cuda: 13_000,
            branch: Some(580),
            api: Some(Api::V13),
            permitted: Known::Yes,
        }),
        mig: Known::No,
        mps: Known::No,
        ipc_job: false,
        host_left: Some(HostLeft {
            bytes: 16 * GIB,
            limit: "the seat".into(),
        }),
        children: Vec::new(),
        state: Err("no state engine".into()),
        other_replica: false,
        tried: Vec::new(),
    }
}

fn rung(found: &Found) -> Option<Rung> {
    choose(found).ok().map(|chosen| chosen.rung)
}

#[test]
fn the_fastest_rung_that_reaches_is_taken() {
    let mut found = easy();
    assert_eq!(rung(&found), Some(Rung::CopyOut));
    found.inside = None;
    assert_eq!(rung(&found), Some(Rung::Checkpoint));
    found.driver = Err("no libcuda".into());
    assert_eq!(rung(&found), None);
    found.other_replica = true;
    assert_eq!(rung(&found), Some(Rung::Move));
    found.state = Ok(StateOffer {
        bytes: 1,
        lost: Vec::new(),
    });
    assert_eq!(rung(&found), Some(Rung::Restart));
    found.touched = false;
    assert_eq!(rung(&found), Some(Rung::Nothing));
}

#[test]
fn in_the_middle_of_a_cell_only_what_the_driver_does_alone_counts() {
    use ProcessState::Running;
    let running = |found: &Found, gpus| against_mid_cell(found, Some(Running), gpus);
    let mut found = easy();
    // What the agent refuses to copy out is none of it.
    found
        .inside
        .as_mut()
        .unwrap()
        .refusals
        .push("a cell is running".into());
    assert_eq!(running(&found, Some(8)), []);
    found.inside = None;
    assert_eq!(running(&found, Some(8)), []);
    assert_eq!(against_mid_cell(&found, None, Some(1)), [Reason::NoContext]);
    assert_eq!(running(&found, None), [Reason::NoTelemetry]);
    found.children = vec![7];
    assert_eq!(running(&found, Some(1)), [Reason::Children { pids: vec![7] }]);
    // It is the child's alone.
    found.touched = false;
    assert_eq!(
        against_mid_cell(&found, None, Some(1)),
        [Reason::Children { pids: vec![7] }]
    );
    found.children.clear();
    assert_eq!(running(&found, Some(1)), [Reason::NotOnGpu]);

    let mut found = easy();
    found.driver.as_mut().unwrap().api = Some(Api::V12_8);
    assert_eq!(running(&found, Some(1)), []);
    assert_eq!(running(&found, Some(2)), [Reason::SameGpuOnly { gpus: 2 }]);
    found.driver.as_mut().unwrap().api = None;
    let too_old = Reason::DriverTooOld { cuda: 13_000 };
    assert_eq!(against_mid_cell(&found, None, Some(2)), [too_old]);
    found.driver = Err("no libcuda".into());
    assert_eq!(
        against_mid_cell(&found, None, Some(2)),
        [Reason::NoDriver {
            why: "no libcuda".into()
        }]
    );
}

#[test]
fn a_cuda_graph_sends_everything_to_the_driver() {
    let mut found = easy();
    let graph = "a CUDA graph holds addresses on the device".to_owned();
    found.inside.as_mut().unwrap().refusals.push(graph.clone());
    let chosen = choose(&found).unwrap();
    assert_eq!(chosen.rung, Rung::Checkpoint);
    assert_eq!(
        chosen.passed_over[1],
        (Rung::CopyOut, vec![Reason::AgentRefuses { what: graph }])
    );
}

#[test]
fn page_locked_memory_at_hand_is_not_asked_for_again() {
    let mut found = easy();
    found.host_left = Some(HostLeft {
        bytes: 2 * GIB,
        limit: "the seat".into(),
    });
    assert_eq!(rung(&found), None);
    found.inside.as_mut().unwrap().pool_bytes = 4 * GIB;
    assert_eq!(rung(&found), Some(Rung::CopyOut));
}

#[test]
fn a_rung_that_failed_is_not_taken_again() {
    let mut found = easy();
    found.tried.push((Rung::CopyOut, "out of host memory".into()));
    assert_eq!(rung(&found), Some(Rung::Checkpoint));
    found.tried.push((Rung::Checkpoint, "left over".into()));
    let refusal = choose(&found).unwrap_err();
    assert!(
        refusal.to_string().contains("tried: out of host memory"),
        "{refusal}"
    );
}

#[test]
fn ipc_needs_610_and_a_launch_job() {
    let mut found = easy();
    found.inside.as_mut().unwrap().ipc = Known::Yes;
    assert_eq!(rung(&found), None);
    found.ipc_job = true;
    assert_eq!(rung(&found), None);
    found.driver.as_mut().unwrap().branch = Some(610);
    assert_eq!(rung(&found), Some(Rung::CopyOut));
}

fn place(n: u8, name: &str, gib: u64) -> Place {
    Place {
        uuid: GpuUuid([n; 16]),
        name: name.into(),
        total_bytes: gib * GIB,
    }
}

#[test]
fn devices_are_remapped_where_the_driver_allows_it() {
    let (a, b, c) = (
        place(1, "H200", 139),
        place(2, "H200", 139),
        place(3, "H200", 139),
    );
    let old = [a.clone(), b.clone()];
    assert_eq!(
        remap(&old, &[b.clone(), a.clone()], Some(Api::V12_8)).unwrap(),
        []
    );
    let pairs = remap(&old, &[c.clone(), a.clone()], Some(Api::V13)).unwrap();
    assert_eq!(
        pairs,
        [
            GpuPair {
                old: a.uuid,
                new: a.uuid
            },
            GpuPair {
                old: b.uuid,
                new: c.uuid
            }
        ]
    );
    assert_eq!(
        remap(&old, &[c, a.clone()], Some(Api::V12_8)),
        Err(RemapError::Driver)
    );
    assert!(matches!(
        remap(&old, std::slice::from_ref(&a), Some(Api::V13)),
        Err(RemapError::Count { .. })
    ));
    let other = [a, place(4, "A100", 139)];
    assert!(matches!(
        remap(&old, &other, Some(Api::V13)),
        Err(RemapError::Chip { .. })
    ));
    let small = [place(4, "H200", 80), b];
    assert!(matches!(
        remap(&old, &small, Some(Api::V13)),
        Err(RemapError::Memory { .. })
    ));
}

fn known() -> impl Strategy<Value = Known> {
    prop_oneof![Just(Known::Yes), Just(Known::No), Just(Known::Unknown)]
}

prop_compose! {
    fn inside()(
        frameworks_bytes in 0..64 * GIB, pool_bytes in 0..64 * GIB, refuses in any::<bool>(),
        managed in known(), ipc in known(),
    ) -> Inside {
        let refusals = if refuses { vec!["a CUDA graph".to_owned()] } else { Vec::new() };
        Inside { frameworks_bytes, pool_bytes, refusals, managed, ipc, saved: false }
    }
}

prop_compose! {
    fn found()(
        touched in any::<bool>(),
        device_bytes in proptest::option::of(0..128 * GIB),
        inside in proptest::option::of(inside()),
        cuda in proptest::option::of(prop_oneof![Just(12_040), Just(12_080), Just(13_000)]),
        permitted in known(), mig in known(), mps in known(),
        host in proptest::option::of(0..128 * GIB),
        child in any::<bool>(), state in proptest::option::of(any::<bool>()), other_replica in any::<bool>(),
    ) -> Found {
        Found {
            touched, device_bytes, inside, mig, mps, other_replica,
            devices: Vec::new(),
            driver: cuda
                .map(|cuda| DriverFound { cuda, branch: None, api: Api::of_version(cuda), permitted })
                .ok_or_else(|| "no libcuda".to_owned()),
            ipc_job: false,
            host_left: host.map(|bytes| HostLeft { bytes, limit: "the seat".into() }),
            children: if child { vec![7] } else { Vec::new() },
            state: state.ok_or_else(String::new).map(|lost| StateOffer { bytes: 1, lost: if lost { vec!["x".into()] } else { Vec::new() } }),
            tried: Vec::new(),
        }
    }
}

proptest! {
    #[test]
    fn each_choice_is_sound_and_each_refusal_says_why(found in found()) {
        match choose(&found) {
            Err(refusal) => {
                prop_assert!(found.touched && !found.other_replica);
                prop_assert_eq!(refusal.passed_over.len(), Rung::ALL.len());
                prop_assert!(refusal.passed_over.iter().all(|(_, reasons)| !reasons.is_empty()));
            }
            Ok(Chosen { rung, passed_over }) => {
                prop_assert!(passed_over.iter().all(|(earlier, reasons)| *earlier < rung && !reasons.is_empty()));
                let place = Rung::ALL.iter().position(|r| *r == rung).unwrap();
                prop_assert_eq!(passed_over.len(), place);
                prop_assert!((rung == Rung::Nothing) != found.touched);
                if matches!(rung, Rung::CopyOut | Rung::Checkpoint) {
                    let driver = found.driver.as_ref().unwrap();
                    prop_assert!(driver.api.is_some() && driver.permitted != Known::No);
                    prop_assert!(found.mig != Known::Yes && found.mps != Known::Yes && found.children.is_empty());
                }
            }
        }
    }

    #[test]
    fn trying_each_choice_in_turn_comes_to_an_end(found in found()) {
        let mut found = found;
        for _ in 0..Rung::ALL.len() {
            let Ok(chosen) = choose(&found) else { return Ok(()) };
            found.tried.push((chosen.rung, "failed".into()));
        }
        prop_assert!(choose(&found).is_err());
    }

    #[test]
    fn more_host_memory_never_leads_further_down(found in found(), more in 0..64 * GIB) {
        let mut richer = found.clone();
        if let Some(left) = &mut richer.host_left { left.bytes += more; }
        let worst = Rung::ALL.len();
        let place = |found: &Found| rung(found).map_or(worst, |r| r as usize);
        prop_assert!(place(&richer) <= place(&found));
    }
}
