//! One pass over all processes inside the kernel: two BPF iterators, over every open file and over every mapping.
//!
//! What a pass through `/proc` needs tens of thousands of calls for, these do in two reads, so that a take-back
//! doesn't grow with what runs on the node. They need a kernel that describes its types (BTF) and has both iterators
//! (Linux 5.12); [`crate::holders`] goes through `/proc` elsewhere, and judges what is found here.

#![allow(unsafe_code)] // bpf(2) has no wrapper in libc.

use crate::bpf::{self, Instruction, Number, instruction};
use crate::btf::Btf;
use serde::{Deserialize, Serialize};
use std::collections::HashMap;
use std::io::{self, Read};
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;

/// What was found at one process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Seen {
    pub(crate) what: What,
    pub(crate) pid: u32,
    /// The thread whose table the descriptor is in.
    pub(crate) thread: u32,
    pub(crate) descriptor: u32,
}

/// Why the process was noticed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum What {
    /// It has one of the devices open.
    Device,
    /// It has one of the devices mapped.
    Mapping,
    /// A Unix socket of its has descriptors in flight; by [`Pass::look_into_flights`]: such that may be the devices.
    InFlight,
    /// Somebody waits to be accepted on its Unix socket, and may have descriptors in flight.
    Listening,
    /// It has an io_uring, which may have the devices registered.
    Ring,
}

impl What {
    const ALL: [Self; 5] = [
        Self::Device,
        Self::Mapping,
        Self::InFlight,
        Self::Listening,
        Self::Ring,
    ];

    fn number(self) -> i32 {
        match self {
            Self::Device => 1,
            Self::Mapping => 2,
            Self::InFlight => 3,
            Self::Listening => 4,
            Self::Ring => 5,
        }
    }
}

/// Both iterators, loaded for some devices.
#[derive(Debug)]
pub(crate) struct Pass {
    files: OwnedFd,
    mappings: OwnedFd,
    layout: Layout,
    numbers: Vec<Number>,
    anonymous: Number,
    /// Looks into the queues of sockets; loaded when there is one to look into.
    flights: Option<OwnedFd>,
}

fn link(program: Assembler, function: u32) -> io::Result<OwnedFd> {
    bpf::link_iterator(bpf::load_iterator(&program.finish(), function)?.as_fd())
}

impl Pass {
    /// `cache`: where to keep what was learnt about this kernel until it boots again; root's alone to write.
    ///
    /// # Errors
    /// This kernel, or this process's place in it, doesn't allow it.
    pub(crate) fn new(numbers: &[Number], anonymous: Option<Number>, cache: &Path) -> io::Result<Self> {
        // Elsewhere the kernel's process numbers aren't those of our /proc.
        const FIRST_PID_NAMESPACE: &str = "pid:[4026531836]";
        if std::fs::read_link("/proc/self/ns/pid")?.as_os_str() != FIRST_PID_NAMESPACE {
            return Err(io::ErrorKind::Unsupported.into());
        }
        let anonymous = anonymous.ok_or(io::ErrorKind::Unsupported)?;
        let layout = Layout::known(cache)?;
        Ok(Self {
            files: link(over_files(&layout, numbers, anonymous), layout.files)?,
            mappings: link(over_mappings(&layout, numbers), layout.mappings)?,
            layout,
            numbers: numbers.to_vec(),
            anonymous,
            flights: None,
        })
    }

    /// # Errors
    /// The kernel's.
    pub(crate) fn run(&self) -> io::Result<Vec<Seen>> {
        let mut seen = iterate(&self.files)?;
        seen.extend(iterate(&self.mappings)?);
        Ok(seen)
    }

    /// The sockets in which the devices may be in flight: one of them is, or something in which it may be in turn (a
    /// socket with descriptors in flight, a ring), or there is too much to look at.
    ///
    /// # Errors
    /// The kernel's.
    pub(crate) fn look_into_flights(&mut self) -> io::Result<Vec<Seen>> {
        if self.flights.is_none() {
            let program = over_flights(&self.layout, &self.numbers, self.anonymous);
            self.flights = Some(link(program, self.layout.files)?);
        }
        self.flights.as_ref().map_or_else(|| Ok(Vec::new()), iterate)
    }
}

fn iterate(link: &OwnedFd) -> io::Result<Vec<Seen>> {
    let mut bytes = Vec::new();
    let mut file = std::fs::File::from(bpf::new_iteration(link.as_fd())?);
    let mut buffer = vec![0; 64 * 1024];
    loop {
        match file.read(&mut buffer) {
            Ok(0) => break,
            Ok(n) => bytes.extend_from_slice(&buffer[..n]),
            // It has looked at very many without a find and wants to be asked to go on.
            Err(e) if matches!(e.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted) => {}
            Err(e) => return Err(e),
        }
    }
    bytes
        .chunks_exact(RECORD)
        .map(|record| read_record(record).ok_or_else(|| io::ErrorKind::InvalidData.into()))
        .collect()
}

/// Four words: what, process, thread, descriptor.
const RECORD: usize = 16;

fn read_record(record: &[u8]) -> Option<Seen> {
    let word = |i: usize| Some(u32::from_ne_bytes(record.get(4 * i..4 * i + 4)?.try_into().ok()?));
    let what = word(0)?;
    Some(Seen {
        what: *What::ALL.iter().find(|w| w.number().cast_unsigned() == what)?,
        pid: word(1)?,
        thread: word(2)?,
        descriptor: word(3)?,
    })
}

/// Where this kernel has the fields that the programs read, and what they attach to.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct Layout {
    boot: String,
    /// The numbers of the iterators' functions.
    files: u32,
    mappings: u32,
    /// By `structure.field`, in bytes.
    offsets: HashMap<String, i16>,
}

/// The fields, each as the path that leads to it within one structure.
const FIELDS: [&[&str]; 24] = [
    &["task_struct", "tgid"],
    &["task_struct", "pid"],
    &["vm_area_struct", "vm_file"],
    &["file", "f_inode"],
    &["file", "private_data"],
    &["file", "f_path", "dentry"],
    &["dentry", "d_name", "name"],
    &["inode", "i_mode"],
    &["inode", "i_rdev"],
    &["inode", "i_sb"],
    &["super_block", "s_dev"],
    &["socket", "sk"],
    &["sock_common", "skc_family"],
    &["sock_common", "skc_state"],
    &["unix_sock", "scm_stat", "nr_fds"],
    &["bpf_iter_meta", "seq"],
    &["sock", "__sk_common"],
    &["sock", "sk_receive_queue"],
    &["sk_buff_head", "qlen"],
    &["sk_buff", "next"],
    &["sk_buff", "cb"],
    &["unix_skb_parms", "fp"],
    &["scm_fp_list", "fp"],
    &["scm_fp_list", "count"],
];

impl Layout {
    fn known(cache: &Path) -> io::Result<Self> {
        let boot = std::fs::read_to_string("/proc/sys/kernel/random/boot_id")?;
        let kept = std::fs::read(cache).ok();
        let kept: Option<Self> = kept.and_then(|text| serde_json::from_slice(&text).ok());
        if let Some(layout) = kept.filter(|l| l.boot == boot && l.is_whole()) {
            return Ok(layout);
        }
        let layout = Self::learn(boot).ok_or(io::ErrorKind::Unsupported)?;
        // Only what it saves is lost if it can't be kept.
        let new = cache.with_extension(format!("new{}", std::process::id()));
        let _ =
            std::fs::write(&new, serde_json::to_vec(&layout)?).and_then(|()| std::fs::rename(&new, cache));
        Ok(layout)
    }

    fn learn(boot: String) -> Option<Self> {
        const FILES: &str = "bpf_iter_task_file";
        const MAPPINGS: &str = "bpf_iter_task_vma";
        let bytes = std::fs::read("/sys/kernel/btf/vmlinux").ok()?;
        let btf = Btf::parse(&bytes)?;
        let structures = btf.structures(&FIELDS.map(|path| path[0]));
        let functions = btf.functions(&[FILES, MAPPINGS]);
        let mut offsets = HashMap::new();
        for path in FIELDS {
            let mut number = *structures.get(path[0])?;
            let mut offset = 0;
            for name in &path[1..] {
                let (inside, kind) = btf.field(number, name)?;
                (offset, number) = (offset + inside, kind);
            }
            offsets.insert(path.join("."), i16::try_from(offset).ok()?);
        }
        Some(Self {
            boot,
            files: *functions.get(FILES)?,
            mappings: *functions.get(MAPPINGS)?,
            offsets,
        })
    }

    fn is_whole(&self) -> bool {
        FIELDS
            .iter()
            .all(|path| self.offsets.contains_key(&path.join(".")))
    }

    fn at(&self, field: &str) -> i16 {
        *self
            .offsets
            .get(field)
            .expect("a layout has every field of the list, and no other is asked for")
    }
}

// Registers: the helpers' arguments are 1 to 5, and 6 to 9 outlive them; 10 is the end of the stack.
const CONTEXT: u8 = 6;
const FILE: u8 = 7;
const INODE: u8 = 8;
const WHAT: u8 = 9;
const STACK: u8 = 10;

/// The record that is written, and eight bytes to read into, below the end of the stack.
const RECORD_AT: i16 = -16;
const SCRATCH_AT: i16 = -24;

// Both contexts: the iteration's meta data, the task, and what is looked at.
const CONTEXT_META: i16 = 0;
const CONTEXT_TASK: i16 = 8;
const CONTEXT_MAPPING: i16 = 16;
const CONTEXT_DESCRIPTOR: i16 = 16;
const CONTEXT_FILE: i16 = 24;

const READ_KERNEL: i32 = 113; // bpf_probe_read_kernel
const SEQ_WRITE: i32 = 127; // bpf_seq_write

const TYPE_BITS: i32 = 0o170_000;

fn file_type(kind: u32) -> i32 {
    kind.cast_signed()
}

/// Where a jump goes to; each is placed once.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Label {
    Character,
    Socket,
    Nameless,
    Device,
    Write,
    Out,
    Backlog,
    Next,
    Buffer,
    Suspect,
}

/// A program in the making.
#[derive(Debug, Default)]
struct Assembler {
    code: Vec<Instruction>,
    jumps: Vec<(usize, Label)>,
    places: HashMap<Label, usize>,
}

impl Assembler {
    fn push(&mut self, code: u8, to: u8, from: u8, offset: i16, immediate: i32) {
        self.code.push(instruction(code, to, from, offset, immediate));
    }

    fn load(&mut self, size: u8, to: u8, from: u8, offset: i16) {
        self.push(size, to, from, offset, 0);
    }

    fn set(&mut self, to: u8, value: i32) {
        self.push(MOVE, to, 0, 0, value);
    }

    fn copy(&mut self, to: u8, from: u8) {
        self.push(COPY, to, from, 0, 0);
    }

    fn jump(&mut self, code: u8, register: u8, value: i32, label: Label) {
        self.jumps.push((self.code.len(), label));
        self.push(code, register, 0, 0, value);
    }

    /// Follows a pointer, unless it is null.
    fn follow(&mut self, to: u8, from: u8, offset: i16) {
        self.load(POINTER, to, from, offset);
        self.jump(JUMP_IF, to, 0, Label::Out);
    }

    fn place(&mut self, label: Label) {
        self.places.insert(label, self.code.len());
    }

    fn jump_between(&mut self, code: u8, one: u8, other: u8, label: Label) {
        self.jumps.push((self.code.len(), label));
        self.push(code, one, other, 0, 0);
    }

    /// Stores a register in these places of the stack.
    fn keep(&mut self, register: u8, places: &[i16]) {
        for place in places {
            self.push(STORE_POINTER, STACK, register, *place, 0);
        }
    }

    /// Reads what lies at `address + offset` to register 2, through the scratch space: addresses that the verifier
    /// can't follow. What can't be read is zero.
    fn read(&mut self, size: u8, address: u8, offset: i16) {
        let bytes = match size {
            BYTE => 1,
            HALF => 2,
            WORD => 4,
            _ => 8,
        };
        self.copy(3, address);
        self.push(ADD, 3, 0, 0, offset.into());
        self.copy(1, STACK);
        self.push(ADD, 1, 0, 0, SCRATCH_AT.into());
        self.set(2, bytes);
        self.push(CALL, 0, 0, 0, READ_KERNEL);
        self.load(size, 2, STACK, SCRATCH_AT);
    }

    /// Jumps to `Device` if the inode's device is one of these, else out.
    fn compare_numbers(&mut self, layout: &Layout, numbers: &[Number]) {
        self.load(WORD, 2, INODE, layout.at("inode.i_rdev"));
        for number in numbers {
            self.jump(JUMP_IF_WORD, 2, internal(*number), Label::Device);
        }
        self.jump(JUMP, 0, 0, Label::Out);
    }

    /// Writes the record, and the end.
    fn write(&mut self, layout: &Layout, with_descriptor: bool) {
        self.place(Label::Write);
        self.push(STORE_WORD, STACK, WHAT, RECORD_AT, 0);
        self.follow(2, CONTEXT, CONTEXT_TASK);
        for (field, offset) in [("task_struct.tgid", 4), ("task_struct.pid", 8)] {
            self.load(WORD, 3, 2, layout.at(field));
            self.push(STORE_WORD, STACK, 3, RECORD_AT + offset, 0);
        }
        if with_descriptor {
            self.load(WORD, 3, CONTEXT, CONTEXT_DESCRIPTOR);
        } else {
            self.set(3, 0);
        }
        self.push(STORE_WORD, STACK, 3, RECORD_AT + 12, 0);
        self.load(POINTER, 1, CONTEXT, CONTEXT_META);
        self.load(POINTER, 1, 1, layout.at("bpf_iter_meta.seq"));
        self.copy(2, STACK);
        self.push(ADD, 2, 0, 0, RECORD_AT.into());
        self.set(3, 16);
        self.push(CALL, 0, 0, 0, SEQ_WRITE);
        self.place(Label::Out);
        self.set(0, 0);
        self.push(EXIT, 0, 0, 0, 0);
    }

    fn finish(mut self) -> Vec<Instruction> {
        for (at, label) in &self.jumps {
            let to = self.places.get(label).copied().unwrap_or(*at);
            let distance = to.cast_signed() - at.cast_signed() - 1;
            self.code[*at].offset = i16::try_from(distance).unwrap_or(i16::MIN);
        }
        self.code
    }
}

const WORD: u8 = 0x61;
const HALF: u8 = 0x69;
const BYTE: u8 = 0x71;
const POINTER: u8 = 0x79;
const STORE_WORD: u8 = 0x63;
const STORE_POINTER: u8 = 0x7b;
const MOVE: u8 = 0xb7;
const COPY: u8 = 0xbf;
const ADD: u8 = 0x07;
const ADD_REGISTER: u8 = 0x0f;
const SHIFT_LEFT: u8 = 0x67;
const AND: u8 = 0x57;
const JUMP: u8 = 0x05;
const JUMP_IF: u8 = 0x15;
const JUMP_IF_WORD: u8 = 0x16;
const JUMP_UNLESS: u8 = 0x55;
const JUMP_UNLESS_WORD: u8 = 0x56;
const JUMP_UNLESS_SAME: u8 = 0x5d;
const JUMP_IF_LESS: u8 = 0xad;
const CALL: u8 = 0x85;
const EXIT: u8 = 0x95;

/// A device's number as it stands in the kernel's own structures.
fn internal(number: Number) -> i32 {
    (number.major << 20 | number.minor).cast_signed()
}

/// The file's type into register 2.
fn type_of_file(a: &mut Assembler, layout: &Layout) {
    a.follow(INODE, FILE, layout.at("file.f_inode"));
    a.load(HALF, 2, INODE, layout.at("inode.i_mode"));
    a.push(AND, 2, 0, 0, TYPE_BITS);
}

/// How a pass over the open files begins: the file's type is in register 2.
fn each_open_file(layout: &Layout) -> Assembler {
    let mut a = Assembler::default();
    a.copy(CONTEXT, 1);
    a.follow(FILE, CONTEXT, CONTEXT_FILE);
    type_of_file(&mut a, layout);
    a
}

fn over_files(layout: &Layout, numbers: &[Number], anonymous: Number) -> Assembler {
    let mut a = each_open_file(layout);
    a.jump(JUMP_IF, 2, file_type(libc::S_IFCHR), Label::Character);
    a.jump(JUMP_IF, 2, file_type(libc::S_IFSOCK), Label::Socket);
    // Nameless inodes have no type before Linux 6.16.
    a.jump(JUMP_IF, 2, 0, Label::Nameless);
    a.jump(JUMP_IF, 2, file_type(libc::S_IFREG), Label::Nameless);
    a.jump(JUMP, 0, 0, Label::Out);

    a.place(Label::Character);
    a.compare_numbers(layout, numbers);
    a.place(Label::Device);
    a.set(WHAT, What::Device.number());
    a.jump(JUMP, 0, 0, Label::Write);

    a.place(Label::Nameless);
    ring(&mut a, layout, anonymous);
    a.place(Label::Socket);
    socket(&mut a, layout);
    a.write(layout, true);
    a
}

/// How the name of an io_uring's inode begins.
const RING: [u8; 4] = *b"[io_";

/// An anonymous inode whose name begins as io_uring's does.
fn ring(a: &mut Assembler, layout: &Layout, anonymous: Number) {
    a.follow(2, INODE, layout.at("inode.i_sb"));
    a.load(WORD, 2, 2, layout.at("super_block.s_dev"));
    a.jump(JUMP_UNLESS_WORD, 2, internal(anonymous), Label::Out);
    a.follow(2, FILE, layout.at("file.f_path.dentry"));
    a.follow(2, 2, layout.at("dentry.d_name.name"));
    a.read(WORD, 2, 0);
    a.jump(JUMP_UNLESS_WORD, 2, i32::from_ne_bytes(RING), Label::Out);
    a.set(WHAT, What::Ring.number());
    a.jump(JUMP, 0, 0, Label::Write);
}

/// A Unix socket that listens or has descriptors in flight. The inode's register becomes the socket's.
fn socket(a: &mut Assembler, layout: &Layout) {
    a.load(POINTER, 2, FILE, layout.at("file.private_data"));
    unix_socket(a, layout, Label::Out);
    a.set(WHAT, What::Listening.number());
    a.read(BYTE, INODE, state_of(layout));
    a.jump(JUMP_IF, 2, LISTEN, Label::Backlog);
    a.set(WHAT, What::InFlight.number());
    a.read(WORD, INODE, layout.at("unix_sock.scm_stat.nr_fds"));
    a.jump(JUMP_IF, 2, 0, Label::Out);
    a.jump(JUMP, 0, 0, Label::Write);
    a.place(Label::Backlog);
    a.read(
        WORD,
        INODE,
        layout.at("sock.sk_receive_queue") + layout.at("sk_buff_head.qlen"),
    );
    a.jump(JUMP_IF, 2, 0, Label::Out);
}

const LISTEN: i32 = 10;

fn state_of(layout: &Layout) -> i16 {
    layout.at("sock.__sk_common") + layout.at("sock_common.skc_state")
}

/// From the `struct socket` in register 2 to the Unix socket in the inode's register; any other goes to `other`.
fn unix_socket(a: &mut Assembler, layout: &Layout, other: Label) {
    a.read(POINTER, 2, layout.at("socket.sk"));
    a.copy(INODE, 2);
    let family = layout.at("sock.__sk_common") + layout.at("sock_common.skc_family");
    a.read(HALF, INODE, family);
    a.jump(JUMP_UNLESS, 2, libc::AF_UNIX, other);
}

/// How many buffers and descriptors of one socket are looked at; the verifier goes through every turn.
const TURNS: i32 = 128;

// Below the record and the scratch space: where the queue began, the buffer at hand, the list of its descriptors, how
// many these are, which is next; the file at hand.
const HEAD_AT: i16 = -32;
const BUFFER_AT: i16 = -40;
const LIST_AT: i16 = -48;
const COUNT_AT: i16 = -56;
const INDEX_AT: i16 = -64;
const FILE_AT: i16 = -72;

/// In the walk through a queue these two count.
const LEFT: u8 = FILE;
const TURN: u8 = WHAT;

/// Sockets whose queue may hold one of the devices. The queue isn't locked: what a receiver tears apart meanwhile makes
/// the count go wrong or the end stay out, and is written as if it held one.
fn over_flights(layout: &Layout, numbers: &[Number], anonymous: Number) -> Assembler {
    let mut a = each_open_file(layout);
    a.jump(JUMP_UNLESS, 2, file_type(libc::S_IFSOCK), Label::Out);
    a.load(POINTER, 2, FILE, layout.at("file.private_data"));
    unix_socket(&mut a, layout, Label::Out);
    a.read(BYTE, INODE, state_of(layout));
    a.jump(JUMP_IF, 2, LISTEN, Label::Out);
    a.read(WORD, INODE, layout.at("unix_sock.scm_stat.nr_fds"));
    a.copy(LEFT, 2);
    a.jump(JUMP_IF, LEFT, 0, Label::Out);
    a.push(ADD, INODE, 0, 0, layout.at("sock.sk_receive_queue").into());
    a.keep(INODE, &[HEAD_AT, BUFFER_AT]);
    a.set(2, 0);
    a.keep(2, &[COUNT_AT, INDEX_AT, LIST_AT]);
    a.set(TURN, 0);

    a.place(Label::Next);
    a.push(ADD, TURN, 0, 0, 1);
    a.jump(JUMP_IF, TURN, TURNS, Label::Suspect);
    a.load(POINTER, 1, STACK, INDEX_AT);
    a.load(POINTER, 2, STACK, COUNT_AT);
    a.jump_between(JUMP_IF_LESS, 1, 2, Label::Device);
    next_buffer(&mut a, layout);
    a.place(Label::Device);
    next_file(&mut a, layout);

    a.place(Label::Character);
    a.read(WORD, INODE, layout.at("inode.i_rdev"));
    for number in numbers {
        a.jump(JUMP_IF_WORD, 2, internal(*number), Label::Suspect);
    }
    a.jump(JUMP, 0, 0, Label::Next);

    a.place(Label::Socket);
    a.load(POINTER, 2, STACK, FILE_AT);
    a.read(POINTER, 2, layout.at("file.private_data"));
    unix_socket(&mut a, layout, Label::Next);
    a.read(BYTE, INODE, state_of(layout));
    a.jump(JUMP_IF, 2, LISTEN, Label::Suspect);
    a.read(WORD, INODE, layout.at("unix_sock.scm_stat.nr_fds"));
    a.jump(JUMP_IF, 2, 0, Label::Next);
    a.jump(JUMP, 0, 0, Label::Suspect);

    a.place(Label::Nameless);
    a.read(POINTER, INODE, layout.at("inode.i_sb"));
    a.read(WORD, 2, layout.at("super_block.s_dev"));
    a.jump(JUMP_UNLESS_WORD, 2, internal(anonymous), Label::Next);
    a.load(POINTER, 2, STACK, FILE_AT);
    a.read(POINTER, 2, layout.at("file.f_path.dentry"));
    a.read(POINTER, 2, layout.at("dentry.d_name.name"));
    a.read(WORD, 2, 0);
    a.jump(JUMP_UNLESS_WORD, 2, i32::from_ne_bytes(RING), Label::Next);

    a.place(Label::Suspect);
    a.set(WHAT, What::InFlight.number());
    a.write(layout, true);
    a
}

/// The queue's next buffer, with its list of descriptors. At the head again, all of them have to have been seen.
fn next_buffer(a: &mut Assembler, layout: &Layout) {
    a.load(POINTER, 2, STACK, BUFFER_AT);
    // The head is made like a buffer as far as this field.
    a.read(POINTER, 2, layout.at("sk_buff.next"));
    a.keep(2, &[BUFFER_AT]);
    a.jump(JUMP_IF, 2, 0, Label::Suspect);
    a.load(POINTER, 1, STACK, HEAD_AT);
    a.jump_between(JUMP_UNLESS_SAME, 2, 1, Label::Buffer);
    a.jump(JUMP_IF, LEFT, 0, Label::Out);
    a.jump(JUMP, 0, 0, Label::Suspect);
    a.place(Label::Buffer);
    a.read(
        POINTER,
        2,
        layout.at("sk_buff.cb") + layout.at("unix_skb_parms.fp"),
    );
    a.keep(2, &[LIST_AT]);
    a.set(1, 0);
    a.keep(1, &[INDEX_AT, COUNT_AT]);
    a.jump(JUMP_IF, 2, 0, Label::Next);
    a.read(HALF, 2, layout.at("scm_fp_list.count"));
    a.keep(2, &[COUNT_AT]);
    a.jump(JUMP, 0, 0, Label::Next);
}

/// The list's next file, told by its type.
fn next_file(a: &mut Assembler, layout: &Layout) {
    a.push(ADD, LEFT, 0, 0, -1);
    a.load(POINTER, 2, STACK, INDEX_AT);
    a.copy(1, 2);
    a.push(ADD, 1, 0, 0, 1);
    a.keep(1, &[INDEX_AT]);
    a.push(SHIFT_LEFT, 2, 0, 0, 3);
    a.load(POINTER, 1, STACK, LIST_AT);
    a.push(ADD_REGISTER, 2, 1, 0, 0);
    a.read(POINTER, 2, layout.at("scm_fp_list.fp"));
    a.keep(2, &[FILE_AT]);
    a.jump(JUMP_IF, 2, 0, Label::Suspect);
    a.read(POINTER, 2, layout.at("file.f_inode"));
    a.copy(INODE, 2);
    a.jump(JUMP_IF, INODE, 0, Label::Suspect);
    a.read(HALF, INODE, layout.at("inode.i_mode"));
    a.push(AND, 2, 0, 0, TYPE_BITS);
    a.jump(JUMP_IF, 2, file_type(libc::S_IFCHR), Label::Character);
    a.jump(JUMP_IF, 2, file_type(libc::S_IFSOCK), Label::Socket);
    a.jump(JUMP_IF, 2, 0, Label::Nameless);
    a.jump(JUMP_IF, 2, file_type(libc::S_IFREG), Label::Nameless);
    a.jump(JUMP, 0, 0, Label::Next);
}

fn over_mappings(layout: &Layout, numbers: &[Number]) -> Assembler {
    let mut a = Assembler::default();
    a.copy(CONTEXT, 1);
    a.follow(2, CONTEXT, CONTEXT_MAPPING);
    a.follow(FILE, 2, layout.at("vm_area_struct.vm_file"));
    type_of_file(&mut a, layout);
    a.jump(JUMP_UNLESS, 2, file_type(libc::S_IFCHR), Label::Out);
    a.compare_numbers(layout, numbers);
    a.place(Label::Device);
    a.set(WHAT, What::Mapping.number());
    a.write(layout, false);
    a
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn records_are_read_and_broken_ones_refused() {
        let bytes: Vec<u8> = [3_u32, 7, 8, 9].iter().flat_map(|w| w.to_ne_bytes()).collect();
        let seen = Seen {
            what: What::InFlight,
            pid: 7,
            thread: 8,
            descriptor: 9,
        };
        assert_eq!(read_record(&bytes), Some(seen));
        assert_eq!(read_record(&[0; RECORD]), None);
        assert_eq!(read_record(&bytes[..12]), None);
    }

    #[test]
    fn every_jump_has_its_place() {
        let layout = Layout {
            boot: String::new(),
            files: 0,
            mappings: 0,
            offsets: FIELDS.iter().map(|path| (path.join("."), 8)).collect(),
        };
        assert!(layout.is_whole());
        let number = Number { major: 195, minor: 0 };
        let numbers = [number];
        for a in [
            over_files(&layout, &numbers, number),
            over_mappings(&layout, &numbers),
            over_flights(&layout, &numbers, number),
        ] {
            assert!(a.jumps.iter().all(|(_, label)| a.places.contains_key(label)));
        }
    }
}
