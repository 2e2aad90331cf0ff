//! The answer to a connecting replica: whether the front waits for this replica, and where their talk goes on.
//! [`crate::listen`] has proven the owner of the replica's process.

use hop_protocol::message::{Hello, VERSION, Welcome};
use hop_protocol::retain::Taken;
use hop_words::id::{Incarnation, KernelId, Tenure};

/// The replica that the front waits for.
#[derive(Debug)]
pub(crate) struct Awaited<'a> {
    pub(crate) kernel: &'a KernelId,
    /// `None` means that a replica is being started.
    pub(crate) incarnation: Option<Incarnation>,
    /// The present tenure of a kernel with a log.
    pub(crate) tenure: Option<Tenure>,
    /// The last execution count that clients have read.
    pub(crate) count: Option<i64>,
}

impl Awaited<'_> {
    /// `epoch` is this front's. `taken` lists the replica's frames taken by this front or by a killed predecessor.
    pub(crate) fn answer(&self, hello: &Hello, epoch: u64, taken: &Taken) -> Welcome {
        let version = VERSION;
        match self.refusal(hello) {
            Some(reason) => Welcome::No {
                version,
                reason: reason.to_owned(),
            },
            // Each welcome has the end of the taken frames, and the frames to send again, which a killed front took
            // and didn't finish. The connection before may have broken before its welcome came.
            None => Welcome::Yes {
                version,
                epoch,
                taken: taken.upto(),
                again: taken.again(),
                count: self.count,
            },
        }
    }

    fn refusal(&self, hello: &Hello) -> Option<&'static str> {
        if hello.version != VERSION {
            return Some("front and replica are of different releases: install the same on both");
        }
        if hello.kernel != *self.kernel || Some(hello.incarnation) != self.incarnation {
            return Some("another replica has taken its place");
        }
        // This is an earlier process of the replica, unaware of its tenure's end.
        let over = self.tenure.is_some_and(|present| hello.tenure < present);
        over.then_some("its tenure is over")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use hop_words::id::{JobId, NodeName};

    const EPOCH: u64 = 7;

    fn hello(kernel: &KernelId) -> Hello {
        Hello {
            version: VERSION,
            kernel: kernel.clone(),
            incarnation: Incarnation(3),
            tenure: Tenure(5),
            node: NodeName::from("node1"),
            name: None,
            pid: 1,
            seat: JobId(1),
            step: 0,
            front_epoch: 0,
            taken: 0,
            standby: false,
            in_flight: Vec::new(),
            answered: None,
            members: 3,
        }
    }

    fn awaited(kernel: &KernelId) -> Awaited<'_> {
        Awaited {
            kernel,
            incarnation: Some(Incarnation(3)),
            tenure: Some(Tenure(5)),
            count: None,
        }
    }

    #[test]
    fn each_connection_is_asked_for_what_a_killed_front_did_not_finish_until_it_has_come() {
        let ours = KernelId::from("k1");
        let mut taken = Taken::resume(9, [4, 6]);
        let asks = |taken: &Taken| match awaited(&ours).answer(&hello(&ours), EPOCH, taken) {
            Welcome::Yes {
                epoch, taken, again, ..
            } => (epoch, taken, again),
            no @ Welcome::No { .. } => panic!("{no:?}"),
        };
        assert_eq!(asks(&taken), (EPOCH, 9, vec![4, 6]));
        assert_eq!(asks(&taken), (EPOCH, 9, vec![4, 6]), "the first connection broke");
        taken.take(4);
        assert_eq!(asks(&taken), (EPOCH, 9, vec![6]));
        taken.take(6);
        taken.take(10);
        assert_eq!(asks(&taken), (EPOCH, 10, vec![]));
    }

    #[test]
    fn who_is_not_awaited_is_refused_and_reads_why() {
        let (ours, others) = (KernelId::from("k1"), KernelId::from("k2"));
        let reason =
            |awaited: Awaited<'_>, hello: Hello| match awaited.answer(&hello, EPOCH, &Taken::default()) {
                Welcome::No { reason, .. } => reason,
                yes @ Welcome::Yes { .. } => panic!("{yes:?}"),
            };
        let mut old = hello(&ours);
        old.version += 1;
        assert!(reason(awaited(&ours), old).contains("different releases"));
        assert!(reason(awaited(&ours), hello(&others)).contains("another replica"));
        let mut another = hello(&ours);
        another.incarnation = Incarnation(2);
        assert!(reason(awaited(&ours), another).contains("another replica"));
        let mut starting = awaited(&ours);
        starting.incarnation = None;
        assert!(reason(starting, hello(&ours)).contains("another replica"));
        let mut deposed = hello(&ours);
        deposed.tenure = Tenure(4);
        assert!(reason(awaited(&ours), deposed).contains("tenure is over"));
    }

    #[test]
    fn a_tenure_counts_for_a_kernel_that_keeps_a_log_alone() {
        let ours = KernelId::from("k1");
        let mut without_log = hello(&ours);
        without_log.tenure = Tenure(0);
        let mut awaited = awaited(&ours);
        awaited.tenure = None;
        let answer = awaited.answer(&without_log, EPOCH, &Taken::default());
        assert!(matches!(answer, Welcome::Yes { .. }), "{answer:?}");
    }
}
