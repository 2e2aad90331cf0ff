//! Passes on Python's audit events (PEP 578) of some kinds.
//!
//! Python raises an event for each `id()` and each look at a frame. Python would call a hook written in Python for all
//! of these events: a deep copy then takes half as long again. This hook compares names first.

use std::ffi::{CStr, c_char, c_int, c_void};
use std::mem::transmute;

/// Beginnings of the names of events.
#[derive(Debug)]
pub struct Kinds {
    beginnings: Vec<Box<[u8]>>,
    /// By first byte: most events are told apart by it.
    first: [bool; 256],
}

impl Kinds {
    /// `lines`: one beginning a line.
    pub fn new(lines: &[u8]) -> Self {
        let lines = lines.split(|byte| *byte == b'\n').filter(|line| !line.is_empty());
        let beginnings: Vec<Box<[u8]>> = lines.map(Box::from).collect();
        let mut first = [false; 256];
        for beginning in &beginnings {
            first[usize::from(beginning[0])] = true;
        }
        Self { beginnings, first }
    }

    pub fn have(&self, event: &[u8]) -> bool {
        let begins = event.first().is_some_and(|byte| self.first[usize::from(*byte)]);
        begins
            && self
                .beginnings
                .iter()
                .any(|beginning| event.starts_with(beginning))
    }
}

/// `PyObject`, `PyThreadState` and `PyInterpreterState`: only passed on.
type Opaque = *mut c_void;

/// What is called of the interpreter (docs.python.org/3/c-api).
struct Python {
    call: unsafe extern "C" fn(Opaque, *const c_char, ...) -> Opaque,
    release: unsafe extern "C" fn(Opaque),
    interpreter: unsafe extern "C" fn() -> Opaque,
    thread: unsafe extern "C" fn() -> Opaque,
    /// From Python 3.11 on: a debugger or profiler of the user's doesn't see the call.
    unseen: Option<[unsafe extern "C" fn(Opaque); 2]>,
    add_hook: unsafe extern "C" fn(Hook, Opaque) -> c_int,
}

type Hook = unsafe extern "C" fn(*const c_char, Opaque, Opaque) -> c_int;

fn symbol(name: &CStr) -> Option<Opaque> {
    // SAFETY: the name ends in zero, and the whole process is searched.
    let found = unsafe { libc::dlsym(libc::RTLD_DEFAULT, name.as_ptr()) };
    (!found.is_null()).then_some(found)
}

impl Python {
    /// The interpreter of this process. `None` if one of the functions is missing.
    fn here() -> Option<Self> {
        let unseen = symbol(c"PyThreadState_EnterTracing").zip(symbol(c"PyThreadState_LeaveTracing"));
        // SAFETY: the types are those of Python's header files, the same from 3.9 on.
        unsafe {
            Some(Self {
                call: transmute::<Opaque, unsafe extern "C" fn(Opaque, *const c_char, ...) -> Opaque>(
                    symbol(c"PyObject_CallFunction")?,
                ),
                release: transmute::<Opaque, unsafe extern "C" fn(Opaque)>(symbol(c"Py_DecRef")?),
                interpreter: transmute::<Opaque, unsafe extern "C" fn() -> Opaque>(symbol(
                    c"PyInterpreterState_Get",
                )?),
                thread: transmute::<Opaque, unsafe extern "C" fn() -> Opaque>(symbol(c"PyThreadState_Get")?),
                unseen: unseen.map(|(enter, leave)| {
                    [enter, leave].map(|f| transmute::<Opaque, unsafe extern "C" fn(Opaque)>(f))
                }),
                add_hook: transmute::<Opaque, unsafe extern "C" fn(Hook, Opaque) -> c_int>(symbol(
                    c"PySys_AddAuditHook",
                )?),
            })
        }
    }
}

/// The only listener, for the life of the process: a hook can't be removed.
struct Listener {
    kinds: Kinds,
    /// A callable of (name, arguments).
    told: Opaque,
    /// The interpreter of the callable: other interpreters of this process must not touch the callable.
    interpreter: Opaque,
    python: Python,
}

/// # Safety
/// By Python's promise `event` ends in zero, `args` is a tuple, and the caller may use the interpreter. `listener` is a
/// [`Listener`] that lives for ever.
unsafe extern "C" fn heard(event: *const c_char, args: Opaque, listener: Opaque) -> c_int {
    // SAFETY: by this function's contract.
    let (name, listener) = unsafe { (CStr::from_ptr(event), &*listener.cast::<Listener>()) };
    if !listener.kinds.have(name.to_bytes()) {
        return 0;
    }
    let python = &listener.python;
    // SAFETY: as above, and the format says two arguments, a string and an object.
    unsafe {
        if (python.interpreter)() != listener.interpreter {
            return 0;
        }
        let thread = (python.thread)();
        if let Some([enter, _]) = python.unseen {
            enter(thread);
        }
        let answer = (python.call)(listener.told, c"sO".as_ptr(), event, args);
        if let Some([_, leave]) = python.unseen {
            leave(thread);
        }
        if answer.is_null() {
            return -1; // with an exception, such as an interrupt: what raised the event fails by it
        }
        (python.release)(answer);
    }
    0
}

/// Has `told` called with the name and the arguments of each event of these kinds, from now on. Returns Python's
/// answer, or `None` if this process has no usable interpreter.
///
/// # Safety
/// `told` must be a callable of the calling thread's interpreter, to which the caller gives up a reference.
pub unsafe fn listen(kinds: Kinds, told: *mut c_void) -> Option<i32> {
    let python = Python::here()?;
    // SAFETY: the caller may use the interpreter.
    let interpreter = unsafe { (python.interpreter)() };
    let add_hook = python.add_hook;
    let listener = Box::into_raw(Box::new(Listener {
        kinds,
        told,
        interpreter,
        python,
    }));
    // SAFETY: the listener is never freed.
    Some(unsafe { add_hook(heard, listener.cast()) })
}

#[cfg(test)]
mod tests {
    use super::Kinds;

    #[test]
    fn a_kind_is_the_beginning_of_a_name() {
        let kinds = Kinds::new(b"open\nos.exec\nshutil.\n");
        for name in ["open", "os.exec", "shutil.copyfile"] {
            assert!(kinds.have(name.as_bytes()), "{name}");
        }
        for name in ["", "o", "builtins.id", "os.listdir", "shutil", "sys._getframe"] {
            assert!(!kinds.have(name.as_bytes()), "{name}");
        }
        assert!(!Kinds::new(b"").have(b"open"));
    }
}
