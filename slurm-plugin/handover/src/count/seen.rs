//! Processes with a counted file, by descriptor or by mapping: Linux's iterators over both, beside the map of files.
//!
//! This is exact where `/proc` is not: a lease's file is told from a daemon's own of the same device. References
//! without a descriptor or a mapping show nowhere; [`super::Counter::open_files`] counts them.

use super::{
    Assembler, CALL, COPY, CountError, Counter, FILE, FILE_AT, JUMP_IF, LOOKUP, Label, MOVE, POINTER, STACK,
    STORE_POINTER, WORD, failed,
};
use crate::apart::apart;
use crate::bpf::{self, Instruction};
use crate::token::Hold;
use std::cell::Cell;
use std::io::{self, Read, Write};
use std::os::fd::OwnedFd;
use std::time::Duration;

/// A process that has a counted file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Sighting {
    /// As in [`Counter::files`].
    pub file: u64,
    pub pid: u32,
    pub how: Hold,
}

/// Most bytes of a look: a user may have many duplicates of a file. Those beyond are seen once the first are gone.
const MOST: usize = 16 << 20;
/// Any user can keep the memory of a process of theirs from being looked at. Files that are only mapped aren't seen then:
/// [`super::Counter::open_files`] counts them all the same.
const PATIENCE: Duration = Duration::from_secs(2);

/// The iterators over all descriptors and all mappings of the host.
#[derive(Debug)]
pub struct Sight {
    descriptors: OwnedFd,
    mappings: OwnedFd,
    /// Mappings weren't shown in time, and aren't asked for again.
    stuck: Cell<bool>,
}

impl Counter {
    /// # Errors
    /// This Linux lacks such iterators, or refuses their use.
    pub fn sight(&self) -> Result<Sight, CountError> {
        let bytes = super::description()?;
        let btf = super::types(&bytes)?;
        let missing = |what| move || CountError::NoTypes(what);
        let tgid = btf
            .offset("task_struct", "tgid")
            .ok_or_else(missing("task.tgid"))?;
        let vm_file = btf
            .offset("vm_area_struct", "vm_file")
            .ok_or_else(missing("vma.vm_file"))?;
        let iterator = |name, path: &[i16]| {
            let kind = btf.function(name).ok_or_else(missing(name))?;
            bpf::iterate(&self.on_item(tgid, path), kind).map_err(failed("an iterator can't be had"))
        };
        Ok(Sight {
            descriptors: iterator("bpf_iter_task_file", &[24])?,
            mappings: iterator("bpf_iter_task_vma", &[16, vm_file])?,
            stuck: Cell::new(false),
        })
    }

    /// Writes file and process of a counted file. `path`: from the context, whose second word is the task, to the file.
    fn on_item(&self, tgid: i16, path: &[i16]) -> Vec<Instruction> {
        const CONTEXT: u8 = 7;
        const SEQUENCE_WRITE: i32 = 127; // bpf_seq_write
        let mut a = Assembler::default();
        a.push(COPY, CONTEXT, 1, 0, 0);
        a.push(COPY, FILE, 1, 0, 0);
        for offset in path {
            a.push(POINTER, FILE, FILE, *offset, 0);
            a.jump(JUMP_IF, FILE, 0, 0, Label::Allow);
        }
        a.push(STORE_POINTER, STACK, FILE, FILE_AT, 0);
        a.on_map(LOOKUP, self.files.fd(), FILE_AT);
        a.jump(JUMP_IF, 0, 0, 0, Label::Allow);
        a.push(POINTER, 1, CONTEXT, 8, 0);
        a.jump(JUMP_IF, 1, 0, 0, Label::Allow);
        a.push(WORD, 1, 1, tgid, 0);
        a.push(STORE_POINTER, STACK, 1, FILE_AT + 8, 0);
        a.push(POINTER, 1, CONTEXT, 0, 0);
        a.push(POINTER, 1, 1, 0, 0);
        a.place_of(2, FILE_AT);
        a.push(MOVE, 3, 0, 0, 16);
        a.push(CALL, 0, 0, 0, SEQUENCE_WRITE);
        a.place(Label::Allow);
        a.end(0);
        a.finish()
    }
}

impl Sight {
    /// All present holders of counted files, of any device.
    ///
    /// # Errors
    /// Linux's.
    pub fn look(&self) -> io::Result<Vec<Sighting>> {
        let mut seen = Vec::new();
        for (link, how) in [
            (&self.descriptors, Hold::Descriptor),
            (&self.mappings, Hold::Mapping),
        ] {
            if how == Hold::Mapping && self.stuck.get() {
                continue;
            }
            let mut file = bpf::run(link)?;
            let (bytes, whole) = apart(PATIENCE, MOST, |mut out| {
                let mut buffer = [0; 8192];
                loop {
                    match file.read(&mut buffer)? {
                        0 => return Ok(()),
                        count => out.write_all(&buffer[..count])?,
                    }
                }
            })?;
            self.stuck.set(!whole && bytes.len() < MOST);
            let (words, _) = bytes.as_chunks::<8>();
            let (items, _) = words.as_chunks::<2>();
            seen.extend(items.iter().map(|[file, pid]| Sighting {
                file: u64::from_ne_bytes(*file),
                pid: u32::try_from(u64::from_ne_bytes(*pid)).unwrap_or(0),
                how,
            }));
        }
        Ok(seen)
    }
}

#[cfg(test)]
#[allow(unsafe_code)] // mmap(2).
mod tests {
    use super::super::tests::Host;
    use super::*;
    use crate::bpf::Number;

    const ZERO: Number = Number { major: 1, minor: 5 };

    #[test]
    fn a_counted_file_is_seen_by_descriptor_and_by_mapping() {
        let Some(host) = Host::that_counts() else { return };
        let counter = &host.counter;
        let sight = counter.sight().unwrap();
        let me = std::process::id();
        let seen = || -> Vec<(Hold, u64)> {
            let mine = sight.look().unwrap().into_iter().filter(|s| s.pid == me);
            mine.map(|s| (s.how, s.file)).collect()
        };
        let uncounted = std::fs::File::open("/dev/zero").unwrap();
        host.lend(ZERO);
        assert_eq!(seen(), [], "it was opened before the lease");
        let file = std::fs::File::open("/dev/zero").unwrap();
        let files = counter.files(ZERO);
        let [(Hold::Descriptor, address)] = seen()[..] else {
            panic!("{:?}", seen());
        };
        assert!(files.iter().any(|(f, opener)| *f == address && opener.pid == me));
        let (length, protection) = (4096, libc::PROT_READ);
        let fd = std::os::fd::AsRawFd::as_raw_fd(&file);
        // SAFETY: a new private mapping of a page, which nothing refers to.
        let page = unsafe { libc::mmap(std::ptr::null_mut(), length, protection, libc::MAP_PRIVATE, fd, 0) };
        assert_ne!(page, libc::MAP_FAILED);
        drop((file, uncounted));
        assert_eq!(seen(), [(Hold::Mapping, address)]);
        // SAFETY: the mapping is this test's, without any other reference.
        assert_eq!(unsafe { libc::munmap(page, length) }, 0);
        assert_eq!(seen(), []);
    }
}
