//! Processes with an open file of some devices, by descriptor or by mapping: Linux's iterators over both.
//!
//! This is exact where `/proc` is not: a lease's file is told from a daemon's own of the same device, by the map of
//! files. References without a descriptor or a mapping show nowhere; [`super::Counter::open_files`] counts them.

use super::{
    AND, Assembler, CALL, CHARACTER_FILE, COPY, CountError, FILE, JUMP_IF, JUMP_UNLESS, KIND, LOOKUP, Label,
    Layout, MOVE, OTHER, POINTER, STACK, STORE_NUMBER, STORE_POINTER, STORE_WORD, WORD, failed, internal,
};
use crate::apart::apart;
use crate::bpf::{self, Instruction, Map, Number};
use crate::token::Hold;
use std::cell::Cell;
use std::io::{self, Read, Write};
use std::os::fd::OwnedFd;
use std::time::Duration;

/// A process that has an open file of a device.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Sighting {
    /// As in [`Counter::files`].
    pub file: u64,
    pub pid: u32,
    pub how: Hold,
}

/// What a look has seen.
#[derive(Debug, Default)]
pub struct Look {
    /// In order, and each once however many duplicates there are.
    pub seen: Vec<Sighting>,
    /// The process at which the look was cut off, or just before which, if nobody may look at its memory.
    pub stopped: Option<u32>,
}

/// Most bytes of a look: a user may have many duplicates of a file. Later duplicates are seen once the first are gone.
const MOST: usize = 16 << 20;

/// In place of a device's number: the process that the iterators are at.
const PROCESS: u32 = u32::MAX;

/// The iterators over all descriptors and all mappings of the host.
#[derive(Debug)]
pub struct Sight {
    descriptors: OwnedFd,
    mappings: OwnedFd,
    /// The devices, and [`PROCESS`].
    asked: Map<u32, u64>,
    /// Mappings weren't shown in time, and aren't asked for again: where that was.
    stuck: Cell<Option<u32>>,
}

/// Writes file and process. `path`: from the context, whose second word is the task, to the file.
fn on_item(asked: &Map<u32, u64>, layout: &Layout, tgid: i16, path: &[i16]) -> Vec<Instruction> {
    const CONTEXT: u8 = 7;
    const SEQUENCE_WRITE: i32 = 127; // bpf_seq_write
    const ITEM_AT: i16 = -24;
    const KEY_AT: i16 = -8;
    let mut a = Assembler::default();
    a.push(COPY, CONTEXT, 1, 0, 0);
    a.push(POINTER, 1, 1, 8, 0);
    a.jump(JUMP_IF, 1, 0, 0, Label::Allow);
    a.push(WORD, 1, 1, tgid, 0);
    a.push(STORE_POINTER, STACK, 1, ITEM_AT + 8, 0);
    a.push(STORE_NUMBER, STACK, 0, KEY_AT, PROCESS.cast_signed());
    a.on_map(LOOKUP, asked.fd(), KEY_AT);
    a.jump(JUMP_IF, 0, 0, 0, Label::Allow);
    a.push(POINTER, 1, STACK, ITEM_AT + 8, 0);
    a.push(STORE_POINTER, 0, 1, 0, 0);
    a.push(COPY, FILE, CONTEXT, 0, 0);
    for offset in path {
        a.push(POINTER, FILE, FILE, *offset, 0);
        a.jump(JUMP_IF, FILE, 0, 0, Label::Allow);
    }
    a.push(STORE_POINTER, STACK, FILE, ITEM_AT, 0);
    // A name for which nobody asks a driver or needs a permission.
    a.field(OTHER, FILE, layout.flags);
    a.push(AND, OTHER, 0, 0, libc::O_PATH);
    a.jump(JUMP_UNLESS, OTHER, 0, 0, Label::Allow);
    a.field(OTHER, FILE, layout.inode);
    a.jump(JUMP_IF, OTHER, 0, 0, Label::Allow);
    a.field(FILE, OTHER, layout.mode);
    a.push(AND, FILE, 0, 0, KIND);
    a.jump(JUMP_UNLESS, FILE, 0, CHARACTER_FILE, Label::Allow);
    a.follow(OTHER, layout.device);
    a.push(STORE_WORD, STACK, OTHER, KEY_AT, 0);
    a.on_map(LOOKUP, asked.fd(), KEY_AT);
    a.jump(JUMP_IF, 0, 0, 0, Label::Allow);
    a.push(POINTER, 1, CONTEXT, 0, 0);
    a.push(POINTER, 1, 1, 0, 0);
    a.place_of(2, ITEM_AT);
    a.push(MOVE, 3, 0, 0, 16);
    a.push(CALL, 0, 0, 0, SEQUENCE_WRITE);
    a.place(Label::Allow);
    a.end(0);
    a.finish()
}

impl Sight {
    /// For open files of these devices, whether they were ever lent or not.
    ///
    /// # Errors
    /// This Linux lacks such iterators, or refuses their use.
    pub fn of(devices: &[Number]) -> Result<Self, CountError> {
        let layout = Layout::of_running()?;
        let bytes = super::description()?;
        let btf = super::types(&bytes)?;
        let missing = |what| move || CountError::NoTypes(what);
        let tgid = btf
            .offset("task_struct", "tgid")
            .ok_or_else(missing("task.tgid"))?;
        let vm_file = btf
            .offset("vm_area_struct", "vm_file")
            .ok_or_else(missing("vma.vm_file"))?;
        let asked = Map::make(u32::try_from(devices.len() + 1).unwrap_or(u32::MAX));
        let asked: Map<u32, u64> = asked.map_err(failed("a map can't be made"))?;
        let mut keys = devices.iter().copied().map(internal).chain([PROCESS]);
        let put = keys.try_for_each(|key| asked.put(&key, &0));
        put.map_err(failed("a map can't be written"))?;
        let iterator = |name, path: &[i16]| {
            let kind = btf.function(name).ok_or_else(missing(name))?;
            let program = on_item(&asked, &layout, tgid, path);
            bpf::iterate(&program, kind).map_err(failed("an iterator can't be had"))
        };
        Ok(Self {
            descriptors: iterator("bpf_iter_task_file", &[24])?,
            mappings: iterator("bpf_iter_task_vma", &[16, vm_file])?,
            asked,
            stuck: Cell::new(None),
        })
    }
    /// All present holders of open files of the devices, as far as they are seen within `patience`, for descriptors and
    /// for mappings each. Any user can keep the memory of their own process from being looked at. Then files without a
    /// descriptor, only mapped, aren't seen: [`super::Counter::open_files`] counts them all the same.
    ///
    /// # Errors
    /// Linux's.
    pub fn look(&self, patience: Duration) -> io::Result<Look> {
        self.look_at(MOST, patience)
    }

    fn look_at(&self, most: usize, patience: Duration) -> io::Result<Look> {
        let mut seen = Vec::new();
        let mut stopped = self.stuck.get();
        for (link, how) in [
            (&self.descriptors, Hold::Descriptor),
            (&self.mappings, Hold::Mapping),
        ] {
            if how == Hold::Mapping && self.stuck.get().is_some() {
                continue;
            }
            let mut file = bpf::run(link)?;
            let (bytes, whole) = apart(patience, most, |mut out| {
                let mut buffer = [0; 8192];
                loop {
                    match file.read(&mut buffer)? {
                        0 => return Ok(()),
                        count => out.write_all(&buffer[..count])?,
                    }
                }
            })?;
            if !whole {
                let at = self.asked.get(&PROCESS)?.unwrap_or(0);
                stopped = Some(u32::try_from(at).unwrap_or(0));
                if how == Hold::Mapping && bytes.len() < most {
                    self.stuck.set(stopped);
                }
            }
            let (words, _) = bytes.as_chunks::<8>();
            let (items, _) = words.as_chunks::<2>();
            seen.extend(items.iter().map(|[file, process]| Sighting {
                file: u64::from_ne_bytes(*file),
                pid: u32::try_from(u64::from_ne_bytes(*process)).unwrap_or(0),
                how,
            }));
        }
        seen.sort_unstable();
        seen.dedup();
        Ok(Look { seen, stopped })
    }
}

#[cfg(test)]
#[allow(unsafe_code)] // mmap(2).
mod tests {
    use super::super::tests::Host;
    use super::*;
    use crate::bpf::Number;

    const ZERO: Number = Number { major: 1, minor: 5 };

    /// More duplicates than the pipe from the child takes: the look stops in this process.
    #[test]
    fn whoever_has_too_many_duplicates_is_named() {
        use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
        const FULL: Number = Number { major: 1, minor: 7 };
        const DUPLICATES: u64 = 10_000;
        let Some(_host) = Host::that_counts() else { return };
        let maximum = getrlimit(Resource::Nofile).maximum;
        if maximum.is_some_and(|most| most < DUPLICATES + 100) {
            eprintln!("SKIPPED: no process may open as many files here");
            return;
        }
        let current = Some(DUPLICATES + 100);
        setrlimit(Resource::Nofile, Rlimit { current, maximum }).unwrap();
        let sight = Sight::of(&[FULL]).unwrap();
        let file = std::fs::File::open("/dev/full").unwrap();
        let duplicates: Vec<_> = (0..DUPLICATES).map(|_| file.try_clone().unwrap()).collect();
        let look = |most| sight.look_at(most, Duration::from_secs(60)).unwrap();
        assert_eq!(look(1).stopped, Some(std::process::id()));
        drop(duplicates);
        assert_eq!(look(MOST).stopped, None);
    }

    #[test]
    fn a_counted_file_is_seen_by_descriptor_and_by_mapping() {
        let Some(host) = Host::that_counts() else { return };
        let counter = &host.counter;
        let sight = Sight::of(&[ZERO]).unwrap();
        let me = std::process::id();
        let seen = || -> Vec<(Hold, u64)> {
            let look = sight.look(Duration::from_secs(60)).unwrap();
            assert_eq!(look.stopped, None);
            let mine = look.seen.into_iter().filter(|s| s.pid == me);
            mine.map(|s| (s.how, s.file)).collect()
        };
        let uncounted = std::fs::File::open("/dev/zero").unwrap();
        host.lend(ZERO);
        let [(Hold::Descriptor, before)] = seen()[..] else {
            panic!("{:?}", seen());
        };
        let file = std::fs::File::open("/dev/zero").unwrap();
        let duplicates: Vec<_> = (0..100).map(|_| file.try_clone().unwrap()).collect();
        let _of_another_device = std::fs::File::open("/dev/null").unwrap();
        let files = counter.files(ZERO);
        let of_lease = |(_, file): &(Hold, u64)| *file != before;
        let [(Hold::Descriptor, address)] = seen().into_iter().filter(of_lease).collect::<Vec<_>>()[..]
        else {
            panic!("{:?}", seen());
        };
        assert!(
            files.iter().all(|(f, _)| *f != before),
            "it was opened before the lease"
        );
        assert!(files.iter().any(|(f, opener)| *f == address && opener.pid == me));
        let (length, protection) = (4096, libc::PROT_READ);
        let fd = std::os::fd::AsRawFd::as_raw_fd(&file);
        // SAFETY: a new private mapping of a page, which nothing refers to.
        let page = unsafe { libc::mmap(std::ptr::null_mut(), length, protection, libc::MAP_PRIVATE, fd, 0) };
        assert_ne!(page, libc::MAP_FAILED);
        drop((file, duplicates, uncounted));
        assert_eq!(seen(), [(Hold::Mapping, address)]);
        // SAFETY: the mapping is this test's, without any other reference.
        assert_eq!(unsafe { libc::munmap(page, length) }, 0);
        assert_eq!(seen(), []);
    }
}
