//! Work on a file system that may hang. The work runs on threads of its own, and is awaited for as long as it moves on.
//!
//! No signal ends a thread that a hanging file system holds, so such threads are left behind. Memory that they write is
//! lent to them: at the wait's end it is taken back, and no thread reads it afterwards.
#![allow(unsafe_code)] // a loan of memory ends by a lock, which the borrow checker doesn't know

use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, RwLock};
use std::thread;
use std::time::Duration;

/// The time between two looks at the work, and the number of looks without a step after which the file system is taken
/// to hang: about one second. Looks are counted, not the time: a process that was stopped has missed no step.
const LOOK: Duration = Duration::from_millis(100);
const STILL: u32 = 10;

/// Most threads that are left behind by earlier work, for new work to begin.
const LEFT_BEHIND: usize = 32;

/// The file system hangs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Hangs;

/// Counts the steps of work: each answer of the file system.
#[derive(Debug, Default)]
pub(crate) struct Steps(AtomicU64);

impl Steps {
    pub(crate) fn step(&self) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }

    fn now(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// Judges by the steps whether work moves on.
#[derive(Debug, Default)]
struct Watch {
    steps: u64,
    still: u32,
}

impl Watch {
    /// Looks at the work once more. Returns whether it is taken to hang.
    fn hangs(&mut self, steps: u64) -> bool {
        self.still = if steps == self.steps { self.still + 1 } else { 0 };
        self.steps = steps;
        self.still >= STILL
    }
}

/// Whether a file system takes work.
#[derive(Debug, Default)]
pub(crate) struct Gate {
    hangs: AtomicBool,
    /// Threads at work, also those that were left behind.
    threads: AtomicUsize,
}

impl Gate {
    pub(crate) fn is_closed(&self) -> bool {
        self.hangs.load(Ordering::Relaxed) || self.threads.load(Ordering::Relaxed) > LEFT_BEHIND
    }

    /// Takes no work until `probe` has ended, in a thread of its own.
    pub(crate) fn close_until(self: &Arc<Self>, probe: impl FnOnce() + Send + 'static) {
        if self.hangs.swap(true, Ordering::Relaxed) {
            return;
        }
        let gate = Arc::clone(self);
        let probing = thread::Builder::new().spawn(move || {
            probe();
            gate.hangs.store(false, Ordering::Relaxed);
        });
        if probing.is_err() {
            self.hangs.store(false, Ordering::Relaxed);
        }
    }
}

/// Work for several threads.
struct Crew<E> {
    next: AtomicUsize,
    steps: Steps,
    state: Mutex<State<E>>,
    changed: Condvar,
}

struct State<E> {
    threads: usize,
    failed: Option<E>,
    panicked: bool,
}

impl<E> Crew<E> {
    fn state(&self) -> MutexGuard<'_, State<E>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits for the threads' end, or gives up.
    fn wait(&self) -> Result<(), Hangs> {
        let mut watch = Watch::default();
        let mut state = self.state();
        while state.threads > 0 {
            let (after, waited) = self
                .changed
                .wait_timeout(state, LOOK)
                .unwrap_or_else(PoisonError::into_inner);
            state = after;
            if waited.timed_out() && watch.hangs(self.steps.now()) {
                return Err(Hangs);
            }
        }
        Ok(())
    }
}

/// A thread of a crew. Its end is told whatever ends it.
struct Member<E> {
    crew: Arc<Crew<E>>,
    gate: Arc<Gate>,
}

impl<E> Drop for Member<E> {
    fn drop(&mut self) {
        self.gate.threads.fetch_sub(1, Ordering::Relaxed);
        let mut state = self.crew.state();
        state.threads -= 1;
        state.panicked |= thread::panicking();
        self.crew.changed.notify_one();
    }
}

impl<E> Member<E> {
    fn work(&self, count: usize, work: impl Fn(usize, &Steps) -> Result<(), E>) {
        loop {
            let i = self.crew.next.fetch_add(1, Ordering::Relaxed);
            if i >= count {
                return;
            }
            if let Err(error) = work(i, &self.crew.steps) {
                self.crew.next.store(count, Ordering::Relaxed);
                self.crew.state().failed.get_or_insert(error);
                return;
            }
            self.crew.steps.step();
        }
    }
}

/// Runs `work` for 0..count on at most so many threads; stops at the first error, which is the inner result.
///
/// # Errors
/// The work made no step for a second, or the gate is closed. Threads may still be at work.
pub(crate) fn run<E: Send + 'static>(
    gate: &Arc<Gate>,
    threads: usize,
    count: usize,
    work: impl Fn(usize, &Steps) -> Result<(), E> + Send + Sync + 'static,
) -> Result<Result<(), E>, Hangs> {
    if count == 0 {
        return Ok(Ok(()));
    }
    if gate.is_closed() {
        return Err(Hangs);
    }
    let threads = threads.clamp(1, count);
    let crew = Arc::new(Crew {
        next: AtomicUsize::new(0),
        steps: Steps::default(),
        state: Mutex::new(State {
            threads,
            failed: None,
            panicked: false,
        }),
        changed: Condvar::new(),
    });
    let work = Arc::new(work);
    for _ in 0..threads {
        // The member's drop takes it back, also where the system has no thread left.
        gate.threads.fetch_add(1, Ordering::Relaxed);
        let member = Member {
            crew: Arc::clone(&crew),
            gate: Arc::clone(gate),
        };
        let work = Arc::clone(&work);
        thread::spawn(move || member.work(count, &*work));
    }
    crew.wait()?;
    let mut state = crew.state();
    assert!(!state.panicked, "a thread of the store has panicked");
    Ok(state.failed.take().map_or(Ok(()), Err))
}

/// Memory lent to threads.
#[derive(Debug)]
pub(crate) struct Loan(RwLock<Option<&'static [u8]>>);

impl Loan {
    /// Lets `read` see a part of the memory. `read` must not hang: the lender waits for its end. `None` means
    /// that the memory was taken back.
    pub(crate) fn read<T>(&self, part: Range<usize>, read: impl FnOnce(&[u8]) -> T) -> Option<T> {
        let memory = self.0.read().unwrap_or_else(PoisonError::into_inner);
        memory.and_then(|memory| memory.get(part)).map(read)
    }
}

/// Lends memory while `work` runs.
pub(crate) fn lend<T>(memory: &[u8], work: impl FnOnce(&Arc<Loan>) -> T) -> T {
    /// Takes the memory back when dropped, also by a panic.
    struct Lender(Arc<Loan>);
    impl Drop for Lender {
        fn drop(&mut self) {
            *self.0.0.write().unwrap_or_else(PoisonError::into_inner) = None;
        }
    }
    // SAFETY: the longer lifetime is seen by holders of the read lock alone, with a lifetime of the lock's guard
    // (`Loan::read`). `lender` is dropped before this function returns or unwinds: it waits for all guards, and leaves
    // no reference.
    let memory = unsafe { std::mem::transmute::<&[u8], &'static [u8]>(memory) };
    let lender = Lender(Arc::new(Loan(RwLock::new(Some(memory)))));
    work(&lender.0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc::channel;
    use std::time::Instant;

    #[test]
    fn work_without_a_step_for_a_second_is_taken_to_hang() {
        let mut watch = Watch::default();
        let mut looks = |steps: &[u64]| steps.iter().map(|&s| watch.hangs(s)).collect::<Vec<_>>();
        assert!(!looks(&[1; 10]).contains(&true));
        assert_eq!(looks(&[1, 1]), [true, true]);
        assert!(!looks(&[2, 2, 2, 3, 3, 3, 3, 3, 3, 3, 3, 3, 4]).contains(&true));
        assert_eq!(looks(&[4; 10]).iter().filter(|&&hangs| hangs).count(), 1);
    }

    #[test]
    fn all_is_done_and_the_first_error_ends_the_work() {
        let gate = Arc::default();
        let done = Arc::new(AtomicUsize::new(0));
        let count = Arc::clone(&done);
        let ran = run(&gate, 4, 100, move |_, _| {
            count.fetch_add(1, Ordering::Relaxed);
            Ok::<(), usize>(())
        });
        assert_eq!((ran, done.load(Ordering::Relaxed)), (Ok(Ok(())), 100));
        let failed = run(&gate, 1, 100, |i, _| if i == 7 { Err(i) } else { Ok(()) });
        assert_eq!(failed, Ok(Err(7)));
        let done = Arc::new(AtomicUsize::new(0));
        let count = Arc::clone(&done);
        let (begin, begins) = channel();
        let begins = Mutex::new(begins);
        let failed = run(&gate, 3, 1000, move |i, _| match i {
            0 => {
                begins.lock().unwrap().recv().unwrap();
                Err(0)
            }
            // It was begun before, and fails after.
            1 => {
                begin.send(()).unwrap();
                thread::sleep(Duration::from_millis(200));
                Err(1)
            }
            _ => {
                count.fetch_add(1, Ordering::Relaxed);
                thread::sleep(Duration::from_millis(5));
                Ok(())
            }
        });
        assert_eq!(failed, Ok(Err(0)));
        let done = done.load(Ordering::Relaxed);
        assert!(done < 500, "no other thread goes on: {done}");
        assert_eq!(run(&gate, 4, 0, |i, _| Err(i)), Ok(Ok(())), "nothing to do");
        assert_eq!(gate.threads.load(Ordering::Relaxed), 0);
    }

    #[test]
    fn work_that_hangs_is_left_and_its_memory_is_its_owners_again() {
        let gate: Arc<Gate> = Arc::default();
        let (thaw, thawed) = channel::<()>();
        let thawed = Mutex::new(thawed);
        let (tell, told) = channel();
        let began = Instant::now();
        let memory = vec![7; 100];
        let gave_up = lend(&memory, |loan| {
            let loan = Arc::clone(loan);
            run(&gate, 1, 1, move |_, _| {
                tell.send(loan.read(10..12, <[u8]>::to_vec)).unwrap();
                thawed.lock().unwrap().recv().unwrap();
                tell.send(loan.read(10..12, <[u8]>::to_vec)).unwrap();
                Ok::<(), ()>(())
            })
        });
        assert_eq!(gave_up, Err(Hangs));
        assert!(began.elapsed() >= Duration::from_millis(900));
        drop(memory);
        assert_eq!(told.recv().unwrap(), Some(vec![7, 7]));
        thaw.send(()).unwrap();
        assert_eq!(told.recv().unwrap(), None, "it was taken back");
    }

    #[test]
    fn slow_work_is_awaited_while_it_moves_on() {
        let ran = run(&Arc::default(), 1, 1, |_, steps| {
            for _ in 0..4 {
                thread::sleep(Duration::from_millis(500));
                steps.step();
            }
            Ok::<(), ()>(())
        });
        assert_eq!(ran, Ok(Ok(())));
    }

    #[test]
    fn many_pieces_of_work_are_awaited_while_they_are_done() {
        let ran = run(&Arc::default(), 1, 4, |_, _| {
            thread::sleep(Duration::from_millis(400));
            Ok::<(), ()>(())
        });
        assert_eq!(ran, Ok(Ok(())));
    }

    #[test]
    #[should_panic(expected = "a thread of the store has panicked")]
    fn work_that_panics_is_no_success() {
        let _ = run(&Arc::default(), 1, 1, |_, _| -> Result<(), ()> {
            std::panic::resume_unwind(Box::new("without a trace, which takes long"))
        });
    }

    #[test]
    fn nothing_begins_before_a_probe_has_ended_nor_beside_many_that_were_left() {
        let gate: Arc<Gate> = Arc::default();
        let (answer, answers) = channel::<()>();
        let try_it = || run(&gate, 1, 1, |_, _| Ok::<(), ()>(()));
        let (begin, begins) = channel();
        let second = begin.clone();
        gate.close_until(move || {
            begin.send(1).unwrap();
            answers.recv().unwrap();
        });
        assert_eq!(begins.recv(), Ok(1));
        gate.close_until(move || second.send(2).unwrap());
        assert_eq!(
            begins.recv_timeout(Duration::from_millis(200)).ok(),
            None,
            "one is under way"
        );
        assert_eq!(try_it(), Err(Hangs));
        answer.send(()).unwrap();
        let since = Instant::now();
        while gate.is_closed() && since.elapsed() < Duration::from_secs(10) {
            thread::yield_now();
        }
        assert_eq!(try_it(), Ok(Ok(())));
        gate.threads.fetch_add(LEFT_BEHIND + 1, Ordering::Relaxed);
        assert_eq!(try_it(), Err(Hangs));
    }
}
