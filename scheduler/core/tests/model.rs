//! A model of lease, fencing and take-back, explored in full: two kernels, two devices, an agent that restarts, two
//! terms of `hopd` that both give orders, messages that are late or overtake each other.
//!
//! Two things make it smaller without hiding anything. An order that is on its way is one that is not yet given: a
//! daemon may give its orders at any time, so they arrive as they are given. And a kernel opens a device as soon as it
//! may and never closes it: any other kernel has it open at fewer times.
//!
//! The agent keeps on disk the highest term that it has seen and, of each device, its epoch and what was last done
//! with it. The plugin knows the last epoch of each device and refuses what is not newer. Take-back withdraws the
//! permission and then ends whoever still has the device open, and only then is it confirmed. With all guards no
//! device is ever open in two kernels; without any one of them the model finds how it would be.

use stateright::{Checker, HasDiscoveries, Model, Property};
use std::collections::BTreeSet;

const KERNELS: usize = 2;
const DEVICES: usize = 2;
const RESTARTS: u8 = 1;

/// Which guards there are.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
struct Guards {
    /// The agent refuses orders of an older term.
    term: bool,
    /// The plugin refuses an epoch that is not newer than the device's last.
    epoch: bool,
    /// An agent that starts takes back what its disk says may be out.
    restart: bool,
    /// Take-back ends those who still have the device open.
    holders: bool,
    /// The agent lends only a device whose take-back is confirmed.
    confirmed: bool,
}

const ALL: Guards = Guards {
    term: true,
    epoch: true,
    restart: true,
    holders: true,
    confirmed: true,
};

/// What the agent's disk says of a device.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
enum Disk {
    Free,
    /// Handed to this kernel, or about to be.
    Out(u8),
    TakingBack,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
enum Message {
    /// The agent to the plugin.
    Handover {
        kernel: u8,
        device: u8,
        epoch: u8,
    },
    TakeBack {
        device: u8,
        epoch: u8,
    },
    /// The plugin to the agent.
    TakenBack {
        device: u8,
        epoch: u8,
    },
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct State {
    /// The two daemons: for each kernel the device ordered, if one was.
    ordered: [[Option<u8>; KERNELS]; 2],
    ended: [[bool; KERNELS]; 2],
    wire: BTreeSet<Message>,
    // On the agent's disk.
    term: u8,
    epoch: [u8; DEVICES],
    disk: [Disk; DEVICES],
    restarts: u8,
    // In the kernel of the node.
    last: [u8; DEVICES],
    open: [[bool; KERNELS]; DEVICES],
    /// An order of an older term was carried out after one of a newer.
    stale_obeyed: bool,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
enum Action {
    Order { term: u8, kernel: u8, device: u8 },
    OrderEnd { term: u8, kernel: u8 },
    Deliver(Message),
    Restart,
}

struct Protocol(Guards);

impl Model for Protocol {
    type State = State;
    type Action = Action;

    fn init_states(&self) -> Vec<State> {
        vec![State {
            ordered: [[None; KERNELS]; 2],
            ended: [[false; KERNELS]; 2],
            wire: BTreeSet::new(),
            term: 0,
            epoch: [0; DEVICES],
            disk: [Disk::Free; DEVICES],
            restarts: 0,
            last: [0; DEVICES],
            open: [[false; KERNELS]; DEVICES],
            stale_obeyed: false,
        }]
    }

    fn actions(&self, s: &State, actions: &mut Vec<Action>) {
        for term in 0..2u8 {
            for kernel in 0..KERNELS as u8 {
                match s.ordered[term as usize][kernel as usize] {
                    // It may believe any device free: nothing rests upon what a daemon believes.
                    None => actions.extend((0..DEVICES as u8).map(|device| Action::Order {
                        term,
                        kernel,
                        device,
                    })),
                    Some(_) if !s.ended[term as usize][kernel as usize] => {
                        actions.push(Action::OrderEnd { term, kernel });
                    }
                    Some(_) => {}
                }
            }
        }
        actions.extend(s.wire.iter().copied().map(Action::Deliver));
        if s.restarts < RESTARTS {
            actions.push(Action::Restart);
        }
    }

    fn next_state(&self, last: &State, action: Action) -> Option<State> {
        let mut s = last.clone();
        match action {
            Action::Order { term, kernel, device } => {
                s.ordered[term as usize][kernel as usize] = Some(device);
                self.start(&mut s, term, kernel, device);
            }
            Action::OrderEnd { term, kernel } => {
                s.ended[term as usize][kernel as usize] = true;
                let device = s.ordered[term as usize][kernel as usize]?;
                self.end(&mut s, term, kernel, device);
            }
            Action::Restart => self.restart(&mut s),
            Action::Deliver(message) => {
                s.wire.remove(&message);
                self.deliver(&mut s, message);
            }
        }
        Some(s)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        vec![
            Property::always("no device is open in two kernels", |_, s: &State| {
                s.open.iter().all(|o| o.iter().filter(|x| **x).count() <= 1)
            }),
            Property::always(
                "no order of an older term is obeyed after one of a newer",
                |_, s: &State| !s.stale_obeyed,
            ),
            Property::sometimes("both kernels have a device", |_, s: &State| {
                (0..KERNELS).all(|k| s.open.iter().any(|o| o[k]))
            }),
            Property::sometimes("a device goes from one kernel to the other", |_, s: &State| {
                s.epoch.iter().any(|e| *e >= 3) && s.open.iter().flatten().any(|o| *o)
            }),
        ]
    }
}

impl Protocol {
    fn start(&self, s: &mut State, term: u8, kernel: u8, device: u8) {
        let d = device as usize;
        if !self.hears(s, term) {
            return;
        }
        let free = s.disk[d] == Disk::Free || (!self.0.confirmed && s.disk[d] == Disk::TakingBack);
        if free {
            s.epoch[d] += 1;
            s.disk[d] = Disk::Out(kernel);
            let epoch = s.epoch[d];
            s.wire.insert(Message::Handover {
                kernel,
                device,
                epoch,
            });
        }
    }

    fn end(&self, s: &mut State, term: u8, kernel: u8, device: u8) {
        if self.hears(s, term) && s.disk[device as usize] == Disk::Out(kernel) {
            Self::take_back(s, device as usize);
        }
    }

    fn deliver(&self, s: &mut State, message: Message) {
        match message {
            Message::Handover {
                kernel,
                device,
                epoch,
            } => {
                let d = device as usize;
                if self.0.epoch && epoch <= s.last[d] {
                    return;
                }
                s.last[d] = s.last[d].max(epoch);
                s.open[d][kernel as usize] = true;
            }
            Message::TakeBack { device, epoch } => {
                let d = device as usize;
                // One that is late must not take from the lease after it.
                if self.0.epoch && epoch <= s.last[d] {
                    return;
                }
                s.last[d] = s.last[d].max(epoch);
                if self.0.holders {
                    s.open[d] = [false; KERNELS];
                }
                s.wire.insert(Message::TakenBack { device, epoch });
            }
            Message::TakenBack { device, epoch } => {
                let d = device as usize;
                if s.disk[d] == Disk::TakingBack && s.epoch[d] == epoch {
                    s.disk[d] = Disk::Free;
                }
            }
        }
    }

    fn hears(&self, s: &mut State, term: u8) -> bool {
        if term < s.term {
            if self.0.term {
                return false;
            }
            s.stale_obeyed = true;
        }
        s.term = s.term.max(term);
        true
    }

    fn take_back(s: &mut State, device: usize) {
        s.epoch[device] += 1;
        s.disk[device] = Disk::TakingBack;
        s.wire.insert(Message::TakeBack {
            device: device as u8,
            epoch: s.epoch[device],
        });
    }

    /// Confirmations on their way to it are lost; what it had told the plugin may still arrive.
    fn restart(&self, s: &mut State) {
        s.restarts += 1;
        s.wire.retain(|m| !matches!(m, Message::TakenBack { .. }));
        for d in 0..DEVICES {
            if s.disk[d] == Disk::Free {
                continue;
            }
            if self.0.restart {
                Self::take_back(s, d);
            } else {
                s.disk[d] = Disk::Free;
            }
        }
    }
}

#[test]
fn with_all_guards_no_interleaving_grants_a_device_twice() {
    let checker = Protocol(ALL).checker().threads(2).spawn_bfs().join();
    println!(
        "{} states, {} of them distinct",
        checker.state_count(),
        checker.unique_state_count()
    );
    checker.assert_properties();
}

/// The name of what goes wrong without a guard.
fn broken(guards: Guards) -> Vec<&'static str> {
    let checker = Protocol(guards)
        .checker()
        .threads(2)
        .finish_when(HasDiscoveries::AnyFailures)
        .spawn_bfs()
        .join();
    let always = [
        "no device is open in two kernels",
        "no order of an older term is obeyed after one of a newer",
    ];
    always
        .into_iter()
        .filter(|p| checker.discovery(p).is_some())
        .collect()
}

#[test]
fn without_the_epoch_a_late_handover_grants_twice() {
    assert!(broken(Guards { epoch: false, ..ALL }).contains(&"no device is open in two kernels"));
}

#[test]
fn without_the_take_back_at_its_start_an_agent_grants_twice() {
    assert!(
        broken(Guards {
            restart: false,
            ..ALL
        })
        .contains(&"no device is open in two kernels")
    );
}

#[test]
fn without_ending_the_holders_a_device_is_open_twice() {
    assert!(
        broken(Guards {
            holders: false,
            ..ALL
        })
        .contains(&"no device is open in two kernels")
    );
}

#[test]
fn without_waiting_for_the_take_back_a_device_is_open_twice() {
    assert!(
        broken(Guards {
            confirmed: false,
            ..ALL
        })
        .contains(&"no device is open in two kernels")
    );
}

#[test]
fn without_the_term_an_old_daemon_is_obeyed() {
    let found = broken(Guards { term: false, ..ALL });
    assert_eq!(
        found,
        ["no order of an older term is obeyed after one of a newer"]
    );
}
