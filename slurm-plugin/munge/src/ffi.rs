//! libmunge's C interface: the symbols we call, and a context that frees its allocations.

use crate::{Decoded, Error};
use libc::{c_char, c_int, c_void, gid_t, time_t, uid_t};
use libloading::Library;
use std::ffi::{CStr, CString};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::ptr;
use std::sync::OnceLock;
use std::time::{Duration, SystemTime};

pub(crate) const OPT_CIPHER_TYPE: c_int = 0;
pub(crate) const OPT_TTL: c_int = 4;
const OPT_ENCODE_TIME: c_int = 6;
const OPT_DECODE_TIME: c_int = 7;
const OPT_SOCKET: c_int = 8;
pub(crate) const OPT_UID_RESTRICTION: c_int = 9;
/// Named, not left to munged's default, which a site may set to "none".
pub(crate) const CIPHER_AES128: c_int = 4;

const SUCCESS: c_int = 0;
const BAD_ARG: c_int = 2;
const BAD_LENGTH: c_int = 3;
const SOCKET: c_int = 6;
const TIMEOUT: c_int = 7;
const BAD_CRED: c_int = 8;
const BAD_REALM: c_int = 13;
const CRED_INVALID: c_int = 14;
const CRED_EXPIRED: c_int = 15;
const CRED_REWOUND: c_int = 16;
const CRED_REPLAYED: c_int = 17;
const CRED_UNAUTHORIZED: c_int = 18;

type RawContext = *mut c_void;

/// The functions of libmunge, as munge.h declares them.
struct Functions {
    create: unsafe extern "C" fn() -> RawContext,
    destroy: unsafe extern "C" fn(RawContext),
    set: unsafe extern "C" fn(RawContext, c_int, ...) -> c_int,
    get: unsafe extern "C" fn(RawContext, c_int, ...) -> c_int,
    context_error: unsafe extern "C" fn(RawContext) -> *const c_char,
    error: unsafe extern "C" fn(c_int) -> *const c_char,
    encode: unsafe extern "C" fn(*mut *mut c_char, RawContext, *const c_void, c_int) -> c_int,
    decode: unsafe extern "C" fn(
        *const c_char,
        RawContext,
        *mut *mut c_void,
        *mut c_int,
        *mut uid_t,
        *mut gid_t,
    ) -> c_int,
}

impl Functions {
    /// Loads libmunge.so.2 once. The library is never unloaded, so the pointers stay valid.
    fn load() -> Result<&'static Self, Error> {
        static LOADED: OnceLock<Functions> = OnceLock::new();
        if let Some(functions) = LOADED.get() {
            return Ok(functions);
        }
        let functions = Self::open().map_err(Error::Library)?;
        Ok(LOADED.get_or_init(|| functions))
    }

    fn open() -> Result<Self, libloading::Error> {
        // SAFETY: libmunge's initialisers do nothing but what the C library needs.
        let library: &'static Library = Box::leak(Box::new(unsafe { Library::new("libmunge.so.2") }?));
        // SAFETY: each type is that of the function's declaration in munge.h, unchanged since SONAME 2 exists.
        unsafe {
            Ok(Self {
                create: *library.get(b"munge_ctx_create\0")?,
                destroy: *library.get(b"munge_ctx_destroy\0")?,
                set: *library.get(b"munge_ctx_set\0")?,
                get: *library.get(b"munge_ctx_get\0")?,
                context_error: *library.get(b"munge_ctx_strerror\0")?,
                error: *library.get(b"munge_strerror\0")?,
                encode: *library.get(b"munge_encode\0")?,
                decode: *library.get(b"munge_decode\0")?,
            })
        }
    }
}

/// A munge context: used for one call, then destroyed.
pub(crate) struct Context {
    functions: &'static Functions,
    raw: RawContext,
    socket: Option<PathBuf>,
}

impl Drop for Context {
    fn drop(&mut self) {
        // SAFETY: `raw` came from munge_ctx_create and is destroyed once.
        unsafe { (self.functions.destroy)(self.raw) }
    }
}

impl Context {
    pub(crate) fn new(socket: Option<&Path>) -> Result<Self, Error> {
        let functions = Functions::load()?;
        // SAFETY: no arguments; null is checked.
        let raw = unsafe { (functions.create)() };
        if raw.is_null() {
            return Err(Error::Other {
                code: 5,
                detail: "out of memory".to_owned(),
            });
        }
        let context = Self {
            functions,
            raw,
            socket: socket.map(Path::to_owned),
        };
        if let Some(socket) = socket {
            let path = CString::new(socket.as_os_str().as_bytes()).map_err(|_| Error::Argument {
                detail: "the socket's path holds a NUL".to_owned(),
            })?;
            // SAFETY: MUNGE_OPT_SOCKET takes a C string, which munge copies.
            let code = unsafe { (functions.set)(context.raw, OPT_SOCKET, path.as_ptr()) };
            context.check(code)?;
        }
        Ok(context)
    }

    pub(crate) fn set_number(&mut self, option: c_int, value: c_int) -> Result<(), Error> {
        // SAFETY: the options used with it (cipher, TTL) take an int.
        let code = unsafe { (self.functions.set)(self.raw, option, value) };
        self.check(code)
    }

    pub(crate) fn set_id(&mut self, option: c_int, value: uid_t) -> Result<(), Error> {
        // SAFETY: the restrictions take a uid_t.
        let code = unsafe { (self.functions.set)(self.raw, option, value) };
        self.check(code)
    }

    pub(crate) fn encode(&mut self, payload: &[u8]) -> Result<String, Error> {
        let len = c_int::try_from(payload.len()).map_err(|_| Error::Argument {
            detail: "the payload is over 2 GiB".to_owned(),
        })?;
        let mut text: *mut c_char = ptr::null_mut();
        // SAFETY: the payload's pointer and length belong together; munge allocates `text`.
        let code = unsafe { (self.functions.encode)(&raw mut text, self.raw, payload.as_ptr().cast(), len) };
        let owned = Allocated(text.cast());
        self.check(code)?;
        if owned.0.is_null() {
            return Err(Error::Other {
                code,
                detail: "munge gave no credential".to_owned(),
            });
        }
        // SAFETY: on success `text` is a NUL-terminated string that lives until `owned` is dropped.
        let text = unsafe { CStr::from_ptr(text) };
        Ok(text.to_string_lossy().into_owned())
    }

    pub(crate) fn decode(&mut self, credential: &str) -> Result<Decoded, Error> {
        let text = CString::new(credential.trim()).map_err(|_| Error::Invalid {
            detail: "it holds a NUL".to_owned(),
        })?;
        let (mut buffer, mut len) = (ptr::null_mut::<c_void>(), 0);
        let (mut uid, mut gid) = (uid_t::MAX, gid_t::MAX);
        // SAFETY: all five outputs are valid for the call; munge allocates `buffer`, also on some errors.
        let code = unsafe {
            (self.functions.decode)(
                text.as_ptr(),
                self.raw,
                &raw mut buffer,
                &raw mut len,
                &raw mut uid,
                &raw mut gid,
            )
        };
        let owned = Allocated(buffer);
        self.check(code)?;
        Ok(Decoded {
            payload: owned.bytes(usize::try_from(len).unwrap_or(0)),
            uid,
            gid,
            encoded: self.time(OPT_ENCODE_TIME)?,
            decoded: self.time(OPT_DECODE_TIME)?,
            ttl: self.ttl()?,
            restricted_to: self.restriction()?,
        })
    }

    fn time(&self, option: c_int) -> Result<SystemTime, Error> {
        let mut seconds: time_t = 0;
        // SAFETY: the two time options give a time_t.
        let code = unsafe { (self.functions.get)(self.raw, option, &raw mut seconds) };
        self.check(code)?;
        Ok(SystemTime::UNIX_EPOCH + Duration::from_secs(u64::try_from(seconds).unwrap_or(0)))
    }

    fn ttl(&self) -> Result<Duration, Error> {
        let mut seconds: c_int = 0;
        // SAFETY: MUNGE_OPT_TTL gives an int.
        let code = unsafe { (self.functions.get)(self.raw, OPT_TTL, &raw mut seconds) };
        self.check(code)?;
        Ok(Duration::from_secs(u64::try_from(seconds).unwrap_or(0)))
    }

    fn restriction(&self) -> Result<Option<u32>, Error> {
        let mut uid: uid_t = uid_t::MAX;
        // SAFETY: MUNGE_OPT_UID_RESTRICTION gives a uid_t; (uid_t)-1 is MUNGE_UID_ANY.
        let code = unsafe { (self.functions.get)(self.raw, OPT_UID_RESTRICTION, &raw mut uid) };
        self.check(code)?;
        Ok((uid != uid_t::MAX).then_some(uid))
    }

    fn check(&self, code: c_int) -> Result<(), Error> {
        if code == SUCCESS {
            return Ok(());
        }
        let detail = self.message(code);
        Err(match code {
            SOCKET | TIMEOUT => Error::SocketDown {
                socket: self.socket.clone(),
                detail,
            },
            CRED_REPLAYED => Error::Replayed,
            CRED_EXPIRED => Error::Expired,
            CRED_REWOUND => Error::Rewound,
            CRED_UNAUTHORIZED => Error::Unauthorised,
            BAD_CRED..=BAD_REALM | CRED_INVALID => Error::Invalid { detail },
            BAD_ARG | BAD_LENGTH => Error::Argument { detail },
            code => Error::Other { code, detail },
        })
    }

    /// The context's message, if any, since it is more exact.
    fn message(&self, code: c_int) -> String {
        // SAFETY: both give NULL or a string that lives as long as the context or the library.
        let text = unsafe {
            let text = (self.functions.context_error)(self.raw);
            if text.is_null() {
                (self.functions.error)(code)
            } else {
                text
            }
        };
        if text.is_null() {
            return format!("error {code}");
        }
        // SAFETY: not null, NUL-terminated, not freed by anybody.
        unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned()
    }
}

/// Memory that libmunge allocated with malloc and leaves to us.
struct Allocated(*mut c_void);

impl Allocated {
    fn bytes(&self, len: usize) -> Vec<u8> {
        if self.0.is_null() || len == 0 {
            return Vec::new();
        }
        // SAFETY: munge returned `len` bytes there, alive until `self` is dropped.
        unsafe { std::slice::from_raw_parts(self.0.cast::<u8>(), len) }.to_vec()
    }
}

impl Drop for Allocated {
    fn drop(&mut self) {
        // SAFETY: null or malloc'ed by libmunge, freed once, as munge.h asks.
        unsafe { libc::free(self.0) }
    }
}
