//! A cell that is parked in its middle, where others wait for its GPU, and goes on: a real replica, a real ipykernel with
//! the real agent, the real `hop gpu`, the fake libcuda and NVML of `tests/fakes` (a call in a process that the driver has
//! stopped waits, as in the real one), and a front and a lender that this test plays. Needs what `parking.rs` needs.
#![allow(clippy::unwrap_used, reason = "helpers of tests")]

mod world;

use hop_api::message::{Event, Outcome, ReplicaUp, Request};
use hop_protocol::link::Item;
use hop_protocol::message::{Note, Over};
use hop_replica::leases::News;
use hop_words::id::{CellId, LeaseId};
use hop_words::need::Class;
use hop_words::time::Span;
use serde_json::{Value, json};
use std::fs;
use std::path::Path;
use std::time::Duration;
use world::gpu::{Gpu, ended, leased, let_go, over, programs, said, shown};
use world::{Answer, Heard, World, with_replica};

/// A number on the device, and a cell that adds to it until it is told to stop.
const WORK: &str = "
import ctypes, os, time
cuda = ctypes.CDLL(os.environ['GRESSHOPPER_LIBCUDA'])
context, at = ctypes.c_void_p(), ctypes.c_uint64()
assert cuda.cuInit(0) == 0
assert cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0) == 0
assert cuda.cuMemAlloc_v2(ctypes.byref(at), ctypes.c_size_t(8)) == 0
assert cuda.cuMemsetD8_v2(at, ctypes.c_ubyte(0), ctypes.c_size_t(8)) == 0
number = ctypes.c_uint64()
def read():
    assert cuda.cuMemcpyDtoH_v2(ctypes.byref(number), at, ctypes.c_size_t(8)) == 0
    return number.value
def add():
    number.value = read() + 1
    assert cuda.cuMemcpyHtoD_v2(at, ctypes.byref(number), ctypes.c_size_t(8)) == 0
def work(stop):
    print('on it', flush=True)
    before, added = read(), 0
    while added == 0 or not os.path.exists(stop):
        add()
        added += 1
        time.sleep(0.002)
    os.remove(stop)
    return read() == before + added
os.getpid()
";

struct Play<'a> {
    world: &'a mut World,
    gpu: &'a Gpu,
    pid: String,
}

impl Play<'_> {
    /// A cell that works on the device with this lease, until [`Play::stop`].
    async fn works(&mut self, lease: u64) -> CellId {
        let stop = self.gpu.path("stop");
        self.runs(&format!("work({:?})", stop.display().to_string()), lease)
            .await
    }

    async fn runs(&mut self, code: &str, lease: u64) -> CellId {
        let cell = self.world.run(code, 1).await;
        assert!(matches!(self.world.asked().await, Request::Submit { .. }));
        self.world.grant_devices(&cell, lease, &[&self.gpu.device]);
        self.hears("on it\n").await;
        cell
    }

    fn stop(&self) {
        self.gpu.set("stop", "");
    }

    async fn hears(&mut self, text: &str) -> Heard {
        let found = |(kind, _, content): &Heard| {
            kind == "stream" && content["text"].as_str().is_some_and(|t| t.contains(text))
        };
        self.world.hear(found).await
    }

    fn asks(&self, cell: &CellId, lease: u64) {
        self.world.tell(Event::Park {
            kernel: self.world.kernel.clone(),
            lease: LeaseId(lease),
            cell: cell.clone(),
            reason: "it has run for 61 min and a cell that needs 1 GPU waits".into(),
        });
    }

    /// Asks, and the cell stands still.
    async fn parks(&mut self, cell: &CellId, lease: u64) {
        self.asks(cell, lease);
        self.hears("the cell is parked: it has run for 61 min").await;
        self.says_parked(cell, lease).await;
        assert!(!self.gpu.is_held(&self.pid), "it says so when it is off");
    }

    async fn says_parked(&mut self, cell: &CellId, lease: u64) {
        match self.world.asked().await {
            Request::CellParked {
                cell: parked,
                lease: from,
                ..
            } if parked == *cell && from == LeaseId(lease) => {}
            other => panic!("{other:?}"),
        }
    }

    async fn refuses(&mut self, lease: u64) -> String {
        match self.world.asked().await {
            Request::ParkRefused {
                lease: of, reason, ..
            } if of == LeaseId(lease) => reason,
            other => panic!("{other:?}"),
        }
    }

    async fn reports(&mut self) -> ReplicaUp {
        match self.world.asked().await {
            Request::ReplicaUp(up) => *up,
            other => panic!("{other:?}"),
        }
    }

    fn grants(&self, cell: &CellId, lease: u64) {
        self.world.grant_devices(cell, lease, &[&self.gpu.device]);
    }

    /// The cell ends, its lease is over, and the kernel leaves its GPU in the usual way.
    async fn ends(&mut self, cell: &CellId, lease: u64) -> Answer {
        let answer = self.world.reply(cell).await;
        let outcome = ended(self.world, lease).await;
        assert_eq!(outcome == Outcome::Ok, answer.content["status"] == "ok");
        over(self.world, lease);
        let_go(self.world, lease).await;
        self.world.nothing_asked();
        answer
    }
}

async fn play(scenario: impl AsyncFnOnce(&mut Play<'_>)) {
    let Some(python) = programs() else { return };
    let tmp = tempfile::tempdir().unwrap();
    let gpu = Gpu::new(tmp.path());
    with_replica(&python, async |world| {
        let (_, answer) = leased(world, &gpu, WORK, 1).await;
        let pid = shown(&answer);
        assert!(!pid.is_empty(), "{:?}", answer.content);
        ended(world, 1).await;
        over(world, 1);
        let_go(world, 1).await;
        let mut play = Play {
            world,
            gpu: &gpu,
            pid,
        };
        scenario(&mut play).await;
        shut_down(&mut play, tmp.path()).await;
    })
    .await;
}

/// The kernel is ended, and nothing of it is left.
async fn shut_down(play: &mut Play<'_>, tmp: &Path) {
    play.world.note(Note::End).await;
    loop {
        if let Item::Note(Note::KernelOver { over }) = play.world.item().await {
            assert!(matches!(over, Over::Shutdown), "{over:?}");
            break;
        }
    }
    assert!(!Path::new("/proc").join(&play.pid).exists());
    let left: Vec<_> = fs::read_dir(tmp.join("run"))
        .unwrap()
        .flatten()
        .map(|e| e.file_name())
        .collect();
    assert!(left.is_empty(), "{left:?}");
}

/// A cell that works calls the driver every few milliseconds, and so stands in it by now.
async fn in_the_driver() {
    tokio::time::sleep(Duration::from_millis(500)).await;
}

fn state(heard: &Heard) -> &Value {
    &heard.1["gresshopper"]
}

#[tokio::test]
async fn a_cell_stands_still_where_it_is_and_goes_on_with_another_lease() {
    play(async |play| {
        let cell = play.works(5).await;
        play.parks(&cell, 5).await;
        // What waits for the kernel behind it waits on, and the user is told as of any wait.
        let behind = play.world.run("6 * 7", 0).await;
        let told = play.world.hear(|h| state(h)["state"] == "parked").await;
        assert!(state(&told)["because"].as_str().unwrap().contains("61 min"));
        play.world.tell(Event::Queued {
            kernel: play.world.kernel.clone(),
            cell: cell.clone(),
            position: 2,
            reason: "it needs 1 GPU".into(),
            estimate: Some(Span::from_secs(40)),
            range: None,
        });
        let told = play.world.hear(|h| state(h)["position"] == 2).await;
        assert_eq!(
            (&state(&told)["state"], &state(&told)["eta_s"]),
            (&json!("parked"), &json!(40.0))
        );
        play.grants(&cell, 6);
        play.world.hear(|h| state(h)["state"] == "granted").await;
        play.hears("the cell goes on; it stood still for").await;
        assert!(play.gpu.is_held(&play.pid));
        // And once more.
        play.parks(&cell, 6).await;
        play.grants(&cell, 7);
        play.hears("the cell goes on").await;
        play.stop();
        let answer = play.world.reply(&cell).await;
        assert_eq!(shown(&answer), "True", "{:?}", said(&answer));
        let lease = &answer.metadata["gresshopper"];
        assert_eq!((&lease["lease"], &lease["parked"]), (&json!(7), &json!(2)));
        assert_eq!(ended(play.world, 7).await, Outcome::Ok);
        assert_eq!(shown(&play.world.reply(&behind).await), "42");
        over(play.world, 7);
        let_go(play.world, 7).await;
        a_block_stands_still_as_well(play).await;
    })
    .await;
}

async fn a_block_stands_still_as_well(play: &mut Play<'_>) {
    let stop = play.gpu.path("stop").display().to_string();
    let code = format!("import gresshopper\nwith gresshopper.gpu():\n    print(work({stop:?}))");
    let cell = play.world.run(&code, 0).await;
    let Request::Submit { cell: block, .. } = play.world.asked().await else {
        panic!("no lease was asked for")
    };
    play.grants(&block, 8);
    play.hears("on it\n").await;
    play.parks(&block, 8).await;
    play.world.news.send(News::Up).unwrap();
    let up = play.reports().await;
    assert_eq!((up.holds, up.waiting[0].cell.clone()), (None, block.clone()));
    play.grants(&block, 9);
    play.hears("the cell goes on").await;
    play.stop();
    ended(play.world, 9).await;
    let answer = play.world.reply(&cell).await;
    assert_eq!(said(&answer), ["True\n"]);
    assert_eq!(answer.metadata["gresshopper"]["parked"], 1);
    over(play.world, 9);
    let_go(play.world, 9).await;
}

#[tokio::test]
async fn one_that_can_not_be_stopped_runs_on_and_says_why() {
    play(async |play| {
        // Neither a cell nor a lease of another time.
        let cell = play.works(5).await;
        for (cell, lease) in [(&cell, 4), (&CellId::from("other"), 5)] {
            play.asks(cell, lease);
            assert!(play.refuses(lease).await.contains("doesn't run on it"));
        }
        play.gpu.set("inject", "cuCheckpointProcessLock 999\n");
        play.asks(&cell, 5);
        let why = play.refuses(5).await;
        assert!(why.contains("999"), "{why}");
        fs::remove_file(play.gpu.path("inject")).unwrap();
        play.stop();
        assert_eq!(shown(&play.ends(&cell, 5).await), "True");

        let child = "import subprocess\nwith open(os.environ['GRESSHOPPER_DEV_PREFIX'] + '0') as f:\n    child = \
                     subprocess.Popen(['sleep', '1.5'], stdin=f)\nprint('on it', flush=True)\nchild.wait()";
        let cell = play.runs(child, 6).await;
        play.asks(&cell, 6);
        let why = play.refuses(6).await;
        assert!(why.contains("(sleep) holds"), "{why}");
        assert_eq!(play.ends(&cell, 6).await.content["status"], "ok");
    })
    .await;
}

#[tokio::test]
async fn an_interrupt_takes_effect_at_once_or_with_the_next_gpu() {
    play(async |play| {
        let cell = play.works(5).await;
        play.parks(&cell, 5).await;
        in_the_driver().await;
        play.world.note(Note::Interrupt).await;
        play.hears("It ends as soon as it has one").await;
        play.world.nothing_asked();
        play.grants(&cell, 6);
        let answer = play.ends(&cell, 6).await;
        assert_eq!(answer.content["ename"], "KeyboardInterrupt");
        // Outside of the driver it ends at once, without a GPU.
        let code = "add()\nprint('on it', flush=True)\ntime.sleep(60)";
        let cell = play.runs(code, 7).await;
        play.parks(&cell, 7).await;
        play.world.note(Note::Interrupt).await;
        let answer = play.world.reply(&cell).await;
        assert_eq!(answer.content["ename"], "KeyboardInterrupt");
        assert!(matches!(play.world.asked().await, Request::CancelCell { cell: gone, .. } if gone == cell));
        // What it had is there for the next.
        let cell = play.works(8).await;
        play.stop();
        assert_eq!(shown(&play.ends(&cell, 8).await), "True");
        // Cancelled by somebody: it comes back into the queue only to end.
        let cell = play.works(9).await;
        play.parks(&cell, 9).await;
        in_the_driver().await;
        play.world.tell(Event::Refused {
            kernel: play.world.kernel.clone(),
            cell: cell.clone(),
            reason: "cancelled by bob".into(),
        });
        play.hears("it was refused a GPU to go on with: cancelled by bob")
            .await;
        let up = play.reports().await;
        assert_eq!(up.parked.unwrap().cell, cell);
        play.grants(&cell, 10);
        let answer = play.ends(&cell, 10).await;
        assert_eq!(answer.content["ename"], "KeyboardInterrupt");
        // Ended for good while one stands still.
        let cell = play.works(11).await;
        play.parks(&cell, 11).await;
    })
    .await;
}

#[tokio::test]
async fn whatever_is_lost_meanwhile_its_place_is_not() {
    play(async |play| {
        // hopd is away when the park ends.
        let cell = play.works(5).await;
        play.gpu.set("inject", "cuCheckpointProcessCheckpoint 0 400\n");
        play.asks(&cell, 5);
        let away = || News::Down {
            reason: "restarted".into(),
        };
        play.world.news.send(away()).unwrap();
        play.says_parked(&cell, 5).await;
        play.world.news.send(News::Up).unwrap();
        let up = play.reports().await;
        let parked = up.parked.unwrap();
        assert_eq!((&parked.cell, parked.lease, up.holds), (&cell, LeaseId(5), None));
        assert!(parked.ran > Span::from_millis(300) && parked.ran < Span::from_secs(60));
        assert_eq!(
            (&up.waiting[0].cell, up.waiting[0].class, up.parks),
            (&cell, Class::Interactive, true)
        );
        // And while it comes back: the lease is held, and nothing waits.
        play.gpu.set("inject", "cuCheckpointProcessRestore 0 400\n");
        play.grants(&cell, 6);
        play.world.news.send(News::Up).unwrap();
        let up = play.reports().await;
        assert_eq!(
            (up.holds, up.waiting.len(), up.parked),
            (Some((LeaseId(6), Some(cell.clone()))), 0, None)
        );
        play.grants(&cell, 6);
        play.hears("the cell goes on").await;
        fs::remove_file(play.gpu.path("inject")).unwrap();

        // Its lease is lost in the middle of the park: it is told so, and waits for a GPU to end on.
        play.gpu.set("inject", "cuCheckpointProcessCheckpoint 0 1500\n");
        play.asks(&cell, 6);
        in_the_driver().await;
        over(play.world, 6);
        play.says_parked(&cell, 6).await;
        let_go(play.world, 6).await;
        assert_eq!(play.reports().await.parked.unwrap().cell, cell);
        fs::remove_file(play.gpu.path("inject")).unwrap();

        // No room on the GPU that it is given: it stays where it is, and asks again later.
        play.gpu.set("others", &(1u64 << 30).to_string());
        play.grants(&cell, 7);
        play.hears("can't go back to it").await;
        assert_eq!(ended(play.world, 7).await, Outcome::Parked);
        let_go(play.world, 7).await;
        over(play.world, 7);
        let_go(play.world, 7).await;
        fs::remove_file(play.gpu.path("others")).unwrap();
        assert_eq!(play.reports().await.parked.unwrap().lease, LeaseId(6));

        // The lease that it comes back to is taken away on the way.
        play.gpu.set("inject", "cuCheckpointProcessRestore 0 400\n");
        play.grants(&cell, 8);
        tokio::time::sleep(Duration::from_millis(100)).await;
        over(play.world, 8);
        assert_eq!(play.reports().await.parked.unwrap().cell, cell);
        fs::remove_file(play.gpu.path("inject")).unwrap();
        // It was interrupted when its lease was lost, so once it runs it ends.
        let outcome = play.world.asked().await;
        match outcome {
            Request::CancelCell { .. } => let_go(play.world, 8).await,
            Request::ReleaseLease { .. } => play.grants(&cell, 9),
            other => panic!("{other:?}"),
        }
        let answer = play.world.reply(&cell).await;
        // Whether it stood or ran already when the order came.
        let ended = answer.content["ename"].as_str().unwrap();
        assert!(matches!(ended, "KeyboardInterrupt" | "LeaseRevoked"), "{ended}");
    })
    .await;
}
