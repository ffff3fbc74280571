//! bpf(2): maps, programs, raw tracepoints.

use super::asm::Instruction;
use std::ffi::CStr;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

// include/uapi/linux/bpf.h
const MAP_CREATE: libc::c_long = 0;
const MAP_LOOKUP: libc::c_long = 1;
const MAP_UPDATE: libc::c_long = 2;
const MAP_DELETE: libc::c_long = 3;
const MAP_GET_NEXT_KEY: libc::c_long = 4;
const PROG_LOAD: libc::c_long = 5;
const RAW_TRACEPOINT_OPEN: libc::c_long = 17;
const MAP_LOOKUP_AND_DELETE: libc::c_long = 21;
const PROG_TYPE_RAW_TRACEPOINT: u32 = 17;

/// Kinds of maps (`enum bpf_map_type`).
#[derive(Clone, Copy)]
pub enum MapKind {
    Hash = 1,
    Array = 2,
    CgroupArray = 8,
    Ring = 27,
}

/// Calls bpf(2), which reads `size_of::<T>()` bytes and assumes zero for the rest.
///
/// # Safety
/// `attributes` must be what `command` expects, and every pointer in it valid for what the command does with it.
unsafe fn bpf<T>(command: libc::c_long, attributes: &T) -> io::Result<i32> {
    // SAFETY: the caller guarantees that `attributes` and its pointers are valid for `command`.
    let result = unsafe { libc::syscall(libc::SYS_bpf, command, attributes as *const T, size_of::<T>()) };
    if result < 0 {
        Err(io::Error::last_os_error())
    } else {
        Ok(result as i32)
    }
}

fn owned(fd: i32) -> OwnedFd {
    // SAFETY: the kernel has just created the descriptor, and nothing else owns it.
    unsafe { OwnedFd::from_raw_fd(fd) }
}

#[repr(C)]
struct CreateMap {
    kind: u32,
    key_size: u32,
    value_size: u32,
    max_entries: u32,
    flags: u32,
}

#[repr(C)]
struct Element {
    fd: u32,
    padding: u32,
    key: u64,
    value_or_next_key: u64,
    flags: u64,
}

/// A BPF map, or a ring.
pub struct Map {
    fd: OwnedFd,
    key_size: usize,
    value_size: usize,
}

impl Map {
    /// Creates a map. A ring has neither keys nor values; its `max_entries` is its size in bytes: a power of two, and a
    /// multiple of the page size.
    pub fn new(kind: MapKind, key_size: u32, value_size: u32, max_entries: u32) -> io::Result<Map> {
        let attributes = CreateMap {
            kind: kind as u32,
            key_size,
            value_size,
            max_entries,
            flags: 0,
        };
        // SAFETY: the attributes contain no pointers.
        let fd = unsafe { bpf(MAP_CREATE, &attributes)? };
        Ok(Map {
            fd: owned(fd),
            key_size: key_size as usize,
            value_size: value_size as usize,
        })
    }

    /// Returns the descriptor, for programs that use the map.
    pub fn fd(&self) -> i32 {
        self.fd.as_raw_fd()
    }

    fn element(&self, key: Option<&[u8]>, value: Option<&mut [u8]>) -> Element {
        Element {
            fd: self.fd() as u32,
            padding: 0,
            key: key.map_or(0, |key| key.as_ptr() as u64),
            value_or_next_key: value.map_or(0, |value| value.as_mut_ptr() as u64),
            flags: 0,
        }
    }

    /// Returns the value at a key.
    pub fn get(&self, key: &[u8]) -> Option<Vec<u8>> {
        let mut value = vec![0; self.value_size];
        let element = self.element(Some(key), Some(&mut value));
        // SAFETY: `element` points to a key and to room for a value, of this map's sizes.
        unsafe { bpf(MAP_LOOKUP, &element) }.ok().map(|_| value)
    }

    /// Stores a value at a key.
    pub fn set(&self, key: &[u8], value: &[u8]) -> io::Result<()> {
        assert_eq!((key.len(), value.len()), (self.key_size, self.value_size));
        let element = Element {
            value_or_next_key: value.as_ptr() as u64,
            ..self.element(Some(key), None)
        };
        // SAFETY: `element` points to a key and a value of this map's sizes, which the kernel only reads.
        unsafe { bpf(MAP_UPDATE, &element) }.map(drop)
    }

    /// Removes a key and returns its value, in one step since Linux 5.14. On older kernels, a call that is counted
    /// between the two steps is lost.
    pub fn take(&self, key: &[u8]) -> Option<Vec<u8>> {
        let mut value = vec![0; self.value_size];
        let element = self.element(Some(key), Some(&mut value));
        // SAFETY: `element` points to a key and to room for a value, of this map's sizes.
        if unsafe { bpf(MAP_LOOKUP_AND_DELETE, &element) }.is_ok() {
            return Some(value);
        }
        let value = self.get(key);
        // SAFETY: the element points to a key of this map's size.
        let _ = unsafe { bpf(MAP_DELETE, &self.element(Some(key), None)) };
        value
    }

    /// Returns all keys.
    pub fn keys(&self) -> Vec<Vec<u8>> {
        let mut keys: Vec<Vec<u8>> = Vec::new();
        loop {
            let mut next = vec![0; self.key_size];
            let element = self.element(keys.last().map(Vec::as_slice), Some(&mut next));
            // SAFETY: `element` points to a key or is null, and to room for a key, of this map's size.
            if unsafe { bpf(MAP_GET_NEXT_KEY, &element) }.is_err() {
                return keys;
            }
            keys.push(next);
        }
    }
}

/// For polling a ring.
impl AsFd for Map {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

#[repr(C)]
struct Load {
    kind: u32,
    instructions: u32,
    code: u64,
    license: u64,
    log_level: u32,
    log_size: u32,
    log: u64,
}

/// A program at a raw tracepoint. Dropping it detaches the program.
pub struct AttachedProgram {
    _program: OwnedFd,
    _tracepoint: OwnedFd,
}

#[repr(C)]
struct OpenTracepoint {
    name: u64,
    program: u32,
    padding: u32,
}

/// Loads a program and attaches it to a raw tracepoint, which requires CAP_BPF and CAP_PERFMON. If the verifier rejects
/// the program, the error contains the end of its log.
pub fn attach(tracepoint: &CStr, code: &[Instruction]) -> io::Result<AttachedProgram> {
    let program = load(code)?;
    let attributes = OpenTracepoint {
        name: tracepoint.as_ptr() as u64,
        program: program.as_raw_fd() as u32,
        padding: 0,
    };
    // SAFETY: the name is a C string that outlives the call.
    let tracepoint = unsafe { bpf(RAW_TRACEPOINT_OPEN, &attributes)? };
    Ok(AttachedProgram {
        _program: program,
        _tracepoint: owned(tracepoint),
    })
}

fn load(code: &[Instruction]) -> io::Result<OwnedFd> {
    // The kernel offers the helpers that read memory only to programs under a licence compatible with the GPL; MIT is.
    let license = c"Dual MIT/GPL";
    let mut attributes = Load {
        kind: PROG_TYPE_RAW_TRACEPOINT,
        instructions: code.len() as u32,
        code: code.as_ptr() as u64,
        license: license.as_ptr() as u64,
        log_level: 0,
        log_size: 0,
        log: 0,
    };
    // SAFETY: code and licence outlive the call.
    let error = match unsafe { bpf(PROG_LOAD, &attributes) } {
        Ok(fd) => return Ok(owned(fd)),
        Err(error) => error,
    };
    if matches!(error.raw_os_error(), Some(libc::EPERM | libc::ENOSYS)) {
        return Err(error);
    }
    let mut log = vec![0u8; 1 << 20];
    attributes.log_level = 1;
    attributes.log_size = log.len() as u32;
    attributes.log = log.as_mut_ptr() as u64;
    // SAFETY: code, licence and the log's buffer outlive the call.
    if let Ok(fd) = unsafe { bpf(PROG_LOAD, &attributes) } {
        return Ok(owned(fd));
    }
    let text = String::from_utf8_lossy(&log);
    let text = text.trim_end_matches('\0').trim_end();
    let tail: Vec<&str> = text.lines().rev().take(4).collect();
    let tail: Vec<&str> = tail.into_iter().rev().collect();
    Err(io::Error::new(error.kind(), format!("{error}: {}", tail.join("; "))))
}
