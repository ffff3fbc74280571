//! Puts a program that has just been exec'd, and has not run an instruction, on the synthetic vDSO.

use std::fs::File;
use std::os::fd::OwnedFd;
use std::path::Path;

use fastpath_image::{Instance, vdso::Vdso};

use crate::error::{Error, Result};
use crate::mailbox_layout::HookState;
use crate::maps::{self, Mapping};
use crate::region::{self, door};
use crate::remote::RemoteCalls;
use crate::sites::{self, Doors, Patch, Role};
use crate::stack::{AT_BASE, AT_ENTRY, AT_PHDR, AT_SYSINFO_EHDR, InitialStack};
use crate::target::Status;
use crate::tracee::Tracee;

/// What every program of one `run` gets.
pub struct Kit {
    /// The page, to be mapped read-only.
    pub page: OwnedFd,
    /// Opens the mailbox anew: the file is counted by the kernel as long as a program maps it.
    pub mailbox: Box<dyn Fn() -> Result<OwnedFd> + Send + Sync>,
    /// Start programs as on a host whose kernel gives them no vDSO.
    pub without_vdso: bool,
    /// Give them ours. If not, they only get the hook, so that their descendants are treated alike.
    pub serve: bool,
    /// Seccomp filters that this process inherited, and under which the calls made here were tried.
    pub filters: u32,
    /// Scans of the libraries seen so far.
    pub scans: sites::Cache,
}

/// x86-64 user code segment of 64-bit programs (arch/x86/include/asm/segment.h: __USER_CS).
const USER_CS_64: u64 = 0x33;
/// PR_TSC_ENABLE, prctl(2).
const TSC_ENABLED: u32 = 1;

/// Installs the region and leads the program's start through it. On an error the program is as it was.
pub fn install(tracee: &mut Tracee, kit: &Kit) -> Result<()> {
    let registers = tracee.registers()?;
    if registers.cs != USER_CS_64 {
        return Err(Error::Unsupported(
            "it is a 32-bit program, which is not served yet".into(),
        ));
    }
    let pid = tracee.pid();
    if Status::of(&pid.to_string())?.filters > kit.filters {
        return Err(Error::Unsupported(
            "it has a seccomp filter that this process cannot try out".into(),
        ));
    }
    if time_namespace(&pid.to_string())? != time_namespace("self")? {
        return Err(Error::Unsupported("it is in another time namespace".into()));
    }
    let old = InitialStack::read(tracee, registers.rsp)?;
    let maps = maps::of(pid)?;
    let instance = instance(tracee, kit, &old, &maps)?;
    let code = Code::of(pid, kit, &old, &maps)?;

    let mut new = old.clone();
    let mut calls = RemoteCalls::begin(tracee, &maps, old.bytes().len() + 64)?;
    let installed = Surgery {
        calls: &mut calls,
        undo: Vec::new(),
    }
    .perform(kit, &instance, &code, &maps, &mut new, &old);
    match installed {
        Ok(pointer) => {
            let mut registers = *calls.saved();
            registers.rsp = pointer;
            calls.finish(registers)
        }
        Err(Error::Gone) => Err(Error::Gone),
        Err(e) => calls.abandon().and(Err(e)),
    }
}

fn time_namespace(pid: &str) -> Result<Option<std::path::PathBuf>> {
    // A kernel without time namespaces has no such link.
    match std::fs::read_link(format!("/proc/{pid}/ns/time")) {
        Ok(link) => Ok(Some(link)),
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => Ok(None),
        Err(e) => Err(Error::io(format!("/proc/{pid}/ns/time"), e)),
    }
}

/// The image for this program: with the addresses of its own kernel functions.
fn instance(tracee: &mut Tracee, kit: &Kit, stack: &InitialStack, maps: &[Mapping]) -> Result<Instance> {
    let refuse = |e: &dyn std::fmt::Display| Error::Unsupported(format!("the kernel's vDSO: {e}"));
    let kernel = stack.get(AT_SYSINFO_EHDR).filter(|_| !kit.without_vdso);
    let Some(base) = kernel else {
        return Instance::new(None).map_err(|e| refuse(&e));
    };
    let mapping = maps
        .iter()
        .find(|m| m.start == base)
        .ok_or_else(|| refuse(&"it is not mapped where it should be"))?;
    let mut bytes = vec![0; (mapping.end - mapping.start) as usize];
    tracee.read(base, &mut bytes)?;
    let vdso = Vdso::parse(&bytes).map_err(|e| refuse(&e))?;
    Instance::new(Some((&vdso, base))).map_err(|e| refuse(&e))
}

/// The program's code that is mapped already: the program, and its interpreter if it names one.
struct Code {
    /// Where the region must lie to be in a jump's reach of everything here, if it matters.
    near: Option<u64>,
    /// Sites and load bias of the program itself and of its interpreter.
    program: (std::sync::Arc<sites::Scan>, u64),
    interpreter: Option<(std::sync::Arc<sites::Scan>, u64)>,
}

impl Code {
    fn of(pid: i32, kit: &Kit, stack: &InitialStack, maps: &[Mapping]) -> Result<Code> {
        let scan = |path: &str, role| {
            let file = File::open(path).map_err(|e| Error::io(path, e))?;
            kit.scans.scan(&file, role).map_err(|e| Error::io(path, e))
        };
        let program = scan(&format!("/proc/{pid}/exe"), Role::Program)?;
        let loaded = stack.get(AT_PHDR).and_then(|phdr| file_start(maps, phdr)).unwrap_or(0);
        let program_bias = loaded.wrapping_sub(program.lowest);
        let near = (!program.sites.is_empty()).then_some(loaded);
        let base = stack.get(AT_BASE).filter(|base| *base != 0);
        let mapping = base.and_then(|base| maps.iter().find(|m| m.start == base));
        let interpreter = mapping.and_then(|mapping| {
            let scan = scan(&format!("/proc/{pid}/root{}", mapping.name), Role::Library).ok()?;
            Some((scan.clone(), mapping.start.wrapping_sub(scan.lowest)))
        });
        Ok(Code {
            near,
            program: (program, program_bias),
            interpreter,
        })
    }

    /// The C library comes later, mapped by the interpreter; except musl's, which is the interpreter.
    fn has_more_to_come(&self) -> bool {
        self.interpreter.is_some() && !self.program.0.is_musl()
    }
}

/// Start of the lowest mapping of the file that is mapped at `address`.
pub fn file_start(maps: &[Mapping], address: u64) -> Option<u64> {
    let at = maps.iter().find(|m| (m.start..m.end).contains(&address))?;
    maps.iter()
        .filter(|m| m.inode == at.inode && m.device == at.device && m.name == at.name)
        .map(|m| m.start)
        .min()
}

enum Undo {
    Unmap(u64, u64),
    Close(u64),
    Restore(Patch),
}

struct Surgery<'c, 't> {
    calls: &'c mut RemoteCalls<'t>,
    undo: Vec<Undo>,
}

impl Surgery<'_, '_> {
    /// Returns the stack pointer to start with.
    fn perform(
        mut self,
        kit: &Kit,
        instance: &Instance,
        code: &Code,
        maps: &[Mapping],
        new: &mut InitialStack,
        old: &InitialStack,
    ) -> Result<u64> {
        let done = self.attempt(kit, instance, code, maps, new, old);
        if done.is_err() {
            for step in self.undo.drain(..).rev() {
                // Whatever fails here leaves something unused behind, never something wrong.
                let _ = match step {
                    Undo::Unmap(at, size) => self
                        .calls
                        .call("munmap", libc::SYS_munmap, [at, size, 0, 0, 0, 0])
                        .map(|_| ()),
                    Undo::Close(fd) => self
                        .calls
                        .call("close", libc::SYS_close, [fd, 0, 0, 0, 0, 0])
                        .map(|_| ()),
                    Undo::Restore(patch) => self.calls.tracee().write(patch.address, &patch.bytes),
                };
            }
        }
        done
    }

    fn attempt(
        &mut self,
        kit: &Kit,
        instance: &Instance,
        code: &Code,
        maps: &[Mapping],
        new: &mut InitialStack,
        old: &InitialStack,
    ) -> Result<u64> {
        self.counter_is_readable()?;
        // A static program's calls are in its own text: the region goes near it. A dynamic one's are in libraries, which the
        // kernel and the loader put near each other.
        let region = match code.near.filter(|_| !code.program.0.is_dynamic()) {
            Some(loaded) => self.map_near(maps, loaded, region::SIZE)?,
            None => self.map_code(0, region::SIZE, 0)?,
        };
        self.map_shared(kit, region)?;
        let bytes = instance.bytes();
        if bytes.len() as u64 > region::IMAGE_ROOM {
            return Err(Error::Unsupported("the image is larger than its room".into()));
        }
        let tracee = self.calls.tracee();
        tracee.write(region + region::IMAGE, bytes)?;
        tracee.write(region + region::HOOK, region::HOOK_CODE)?;

        let doors = doors(region);
        let mut used = 0;
        if let Some((scan, bias)) = &code.interpreter {
            used += self.patch(&scan.sites, *bias, region + region::THUNKS, 0, doors)?;
        }
        let (program, bias) = &code.program;
        if !program.sites.is_empty() {
            let (thunks, used) = match program.is_dynamic() {
                true => (self.map_near(maps, file_start_of(code), 4096)?, 0),
                false => (region + region::THUNKS, used),
            };
            self.patch(&program.sites, *bias, thunks, used, doors)?;
        }

        if kit.serve {
            new.set(AT_SYSINFO_EHDR, region + region::IMAGE);
        } else if kit.without_vdso {
            new.remove(AT_SYSINFO_EHDR);
        }
        let entry = old.get(AT_ENTRY).filter(|_| code.has_more_to_come());
        if entry.is_some() {
            new.set(AT_ENTRY, region + region::HOOK + door::ENTRY);
        }
        if !new.same_size(old) {
            new.place_below(old);
        }
        if let (Some(entry), Some(entry_cell)) = (entry, new.address_of(AT_ENTRY)) {
            let state = HookState {
                entry,
                entry_cell,
                ..HookState::default()
            };
            self.calls.tracee().write(region + region::STATE, &state.bytes())?;
        }
        // The last step: in one write, and only then is the stack pointer moved.
        self.calls.tracee().write(new.pointer, &new.bytes())?;
        Ok(new.pointer)
    }

    /// A program started under PR_SET_TSC dies of reading the counter.
    fn counter_is_readable(&mut self) -> Result<()> {
        let at = self.calls.scratch();
        self.calls.call(
            "prctl(PR_GET_TSC)",
            libc::SYS_prctl,
            [libc::PR_GET_TSC as u64, at, 0, 0, 0, 0],
        )?;
        let mut mode = [0; 4];
        self.calls.tracee().read(at, &mut mode)?;
        match u32::from_le_bytes(mode) {
            TSC_ENABLED => Ok(()),
            _ => Err(Error::Unsupported(
                "the counter may not be read there (PR_SET_TSC)".into(),
            )),
        }
    }

    fn map_code(&mut self, at: u64, size: u64, extra: i32) -> Result<u64> {
        let protection = (libc::PROT_READ | libc::PROT_EXEC) as u64;
        let flags = (libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | extra) as u64;
        let mapped = self
            .calls
            .call("mmap", libc::SYS_mmap, [at, size, protection, flags, u64::MAX, 0])?;
        self.undo.push(Undo::Unmap(mapped, size));
        if at != 0 && mapped != at {
            return Err(Error::Unsupported("no room next to the program".into()));
        }
        Ok(mapped)
    }

    fn map_near(&mut self, maps: &[Mapping], loaded: u64, size: u64) -> Result<u64> {
        let at = maps::gap_below(maps, loaded, size, region::GUARD)
            .ok_or_else(|| Error::Unsupported("no room next to the program".into()))?;
        self.map_code(at, size, libc::MAP_FIXED_NOREPLACE)
    }

    /// The page, the mailbox and the hook's state, over the region's first and last pages.
    fn map_shared(&mut self, kit: &Kit, region: u64) -> Result<()> {
        let mailbox = (kit.mailbox)()?;
        let fds = crate::handover::give(self.calls, [&kit.page, &mailbox])?;
        self.undo.extend(fds.map(Undo::Close));
        let read = libc::PROT_READ as u64;
        let write = (libc::PROT_READ | libc::PROT_WRITE) as u64;
        let shared = (libc::MAP_SHARED | libc::MAP_FIXED) as u64;
        let places = [
            (region + region::PAGE, read, fds[0]),
            (region + region::MAILBOX, write, fds[1]),
        ];
        for (at, protection, fd) in places {
            self.calls
                .call("mmap", libc::SYS_mmap, [at, 4096, protection, shared, fd, 0])?;
        }
        self.calls.call(
            "mprotect",
            libc::SYS_mprotect,
            [region + region::STATE, 4096, write, 0, 0, 0],
        )?;
        for fd in fds {
            self.calls.call("close", libc::SYS_close, [fd, 0, 0, 0, 0, 0])?;
            self.undo.retain(|u| !matches!(u, Undo::Close(open) if *open == fd));
        }
        Ok(())
    }

    fn patch(&mut self, sites: &[sites::Site], bias: u64, thunks: u64, used: usize, doors: Doors) -> Result<usize> {
        let (patches, count) = sites::patches(sites, bias, thunks, used, doors);
        for patch in patches {
            let mut displaced = vec![0; patch.bytes.len()];
            self.calls.tracee().read(patch.address, &mut displaced)?;
            self.undo.push(Undo::Restore(Patch {
                address: patch.address,
                bytes: displaced,
            }));
            self.calls.tracee().write(patch.address, &patch.bytes)?;
        }
        Ok(count)
    }
}

fn file_start_of(code: &Code) -> u64 {
    code.near.unwrap_or(0)
}

fn doors(region: u64) -> Doors {
    let hook = region + region::HOOK;
    Doors {
        c: hook + door::BEFORE_SYSCALL,
        go: hook + door::BEFORE_SYSCALL_GO,
    }
}

/// Second visit: the loader has mapped the program's libraries, and the program waits in the hook at its entry.
/// `tracee` is stopped there.
pub fn install_in_libraries(tracee: &mut Tracee, kit: &Kit, maps: &[Mapping], region: u64) -> Result<()> {
    let pid = tracee.pid();
    let mut used = sites::thunks_in_use(&tracee.read_words(region + region::THUNKS, 4096 / 8)?);
    for mapping in maps
        .iter()
        .filter(|m| m.executable && m.inode != 0 && is_c_library(&m.name))
    {
        let path = format!("/proc/{pid}/root{}", mapping.name);
        let file = File::open(&path).map_err(|e| Error::io(&path, e))?;
        if std::os::unix::fs::MetadataExt::ino(&file.metadata().map_err(|e| Error::io(&path, e))?) != mapping.inode {
            // Replaced on disk since it was mapped: its code there is not the code here.
            continue;
        }
        let scan = kit.scans.scan(&file, Role::Library).map_err(|e| Error::io(&path, e))?;
        let bias = file_start(maps, mapping.start).unwrap_or(0).wrapping_sub(scan.lowest);
        let (patches, count) = sites::patches(&scan.sites, bias, region + region::THUNKS, used, doors(region));
        for patch in patches {
            tracee.write(patch.address, &patch.bytes)?;
        }
        used += count;
    }
    Ok(())
}

/// Scans the C library and the interpreter of this process.
pub fn scan_own_libraries(kit: &Kit) {
    let maps = maps::of(std::process::id() as i32).unwrap_or_default();
    let is_interpreter = |name: &str| {
        Path::new(name)
            .file_name()
            .is_some_and(|n| n.as_encoded_bytes().starts_with(b"ld-"))
    };
    for mapping in maps
        .iter()
        .filter(|m| m.executable && (is_c_library(&m.name) || is_interpreter(&m.name)))
    {
        // What cannot be read here is read when it is needed.
        let _ = File::open(&mapping.name).and_then(|file| kit.scans.scan(&file, Role::Library));
    }
}

/// libc.so.6 of glibc, libc-2.31.so and libpthread-2.31.so of older ones.
fn is_c_library(path: &str) -> bool {
    let name = Path::new(path).file_name().and_then(|n| n.to_str()).unwrap_or_default();
    name == "libc.so.6" || name.starts_with("libc-2.") || name.starts_with("libpthread-2.")
}
