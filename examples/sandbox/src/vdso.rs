//! The vDSO that all guests share: one page, one instance of the image, one publisher that works when a guest took the slow path.

use std::fs::File;
use std::io;
use std::num::NonZero;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::FileExt;
use std::ptr::NonNull;

use fastpath_host::{Options, Page, Publisher, Source, ThisHost, Trap, evidence, init};
use fastpath_image::{Image, Instance, Placement};
use fastpath_page::{PAGE_SIZE, Writer};
use nix::fcntl::{FcntlArg, OFlag, SealFlag, fcntl, open};
use nix::sys::memfd::{MFdFlags, memfd_create};
use nix::sys::mman::{MapFlags, ProtFlags, mmap};
use nix::sys::stat::Mode;
use nix::unistd::Pid;
use syscalls::Sysno;

use crate::memory::Memory;
use crate::remote::RemoteCalls;

pub use fastpath_host::Advice;

/// F_SEAL_FUTURE_WRITE, include/uapi/linux/fcntl.h (Linux 5.1).
const F_SEAL_FUTURE_WRITE: SealFlag = SealFlag::from_bits_retain(0x10);

/// A page and an image in one sealed file: the first is written here and nowhere else, the second by nobody.
pub struct HostedVdso {
    /// For those who map it; read-only.
    file: OwnedFd,
    /// What the file holds behind the page.
    image: Vec<u8>,
    publisher: Publisher<'static, ThisHost>,
    system_calls: &'static [u64],
}

impl HostedVdso {
    /// An unseeded page: the guest's first clock read is a system call, which seeds it.
    pub fn new() -> Result<HostedVdso, Box<dyn std::error::Error>> {
        evidence::examine(evidence::Trust::Invariant)
            .map_err(|distrust| format!("{distrust}; run the guest with --no-vdso"))?;
        let image = Image::host();
        // It knows no kernel function, so it says the same at every address.
        let instance = Instance::new(image, &fastpath_image::Options::at(Placement::at(0)))?;
        let file = File::from(memfd_create(
            c"fastpath-vdso",
            MFdFlags::MFD_CLOEXEC | MFdFlags::MFD_ALLOW_SEALING,
        )?);
        file.write_all_at(&vec![0; PAGE_SIZE], 0)?;
        file.write_all_at(instance.bytes(), PAGE_SIZE as u64)?;
        let page = map_page(&file)?;
        fcntl(
            &file,
            FcntlArg::F_ADD_SEALS(
                SealFlag::F_SEAL_SHRINK | SealFlag::F_SEAL_GROW | SealFlag::F_SEAL_SEAL | F_SEAL_FUTURE_WRITE,
            ),
        )?;
        let reader = format!("/proc/self/fd/{}", file.as_raw_fd());
        Writer::new(page).init(&init::of_this_host());
        let on_demand = Options {
            on_demand: true,
            ..Options::default()
        };
        Ok(HostedVdso {
            file: open(reader.as_str(), OFlag::O_RDONLY | OFlag::O_CLOEXEC, Mode::empty())?,
            image: instance.bytes().to_vec(),
            publisher: Publisher::new(page, ThisHost, on_demand),
            system_calls: image.system_calls(),
        })
    }

    /// Maps both into a guest that has not begun, and returns the image's address there.
    pub fn map_into(&self, guest: Pid, memory: &Memory) -> io::Result<u64> {
        let mut remote = RemoteCalls::begin(guest, memory)?;
        let mapped = self.map_by(&mut remote);
        remote.finish()?;
        let address = mapped?;
        // A guest in another PID namespace or root may have opened something else by that name.
        let mut there = vec![0; self.image.len()];
        memory.read(address, &mut there)?;
        if there == self.image {
            Ok(address)
        } else {
            Err(io::Error::other("what it sees of /proc is not this sandbox's"))
        }
    }

    fn map_by(&self, remote: &mut RemoteCalls<'_>) -> io::Result<u64> {
        const READ: u64 = ProtFlags::PROT_READ.bits() as u64;
        const EXECUTE: u64 = READ | ProtFlags::PROT_EXEC.bits() as u64;
        const RESERVED: u64 = (libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE) as u64;
        const IN_PLACE: u64 = (libc::MAP_SHARED | libc::MAP_FIXED) as u64;
        let path = format!("/proc/{}/fd/{}\0", std::process::id(), self.file.as_raw_fd());
        let flags = (libc::O_RDONLY | libc::O_CLOEXEC) as u64;
        let path = remote.pass(path.as_bytes())?;
        let file = remote.call(Sysno::openat, [libc::AT_FDCWD as u64, path, flags, 0, 0, 0])?;
        let (page, image) = (PAGE_SIZE as u64, self.image.len() as u64);
        let area = remote.call(Sysno::mmap, [0, page + image, 0, RESERVED, u64::MAX, 0])?;
        remote.call(Sysno::mmap, [area, page, READ, IN_PLACE, file, 0])?;
        remote.call(Sysno::mmap, [area + page, image, EXECUTE, IN_PLACE, file, page])?;
        remote.call(Sysno::close, [file, 0, 0, 0, 0, 0])?;
        Ok(area + page)
    }

    /// Whether a system call that returned to `pc` was made by the image, because the page had no answer.
    pub fn is_own_call(&self, image_address: u64, pc: u64) -> bool {
        self.system_calls.contains(&pc.wrapping_sub(image_address))
    }

    /// The guest asked for `clock` by a system call: takes a sample if that helps.
    pub fn refresh_after(&self, image_address: u64, pc: u64, clock: i32) -> Advice {
        let advice = self.publisher.trapped(&Trap {
            system_calls: self.system_calls,
            image_address,
            pc,
            clock_id: clock,
            // The kernel's answer is this process's as well. What was stored in the guest's memory may not be it any more.
            answered_ns: ThisHost.clock(clock),
        });
        if advice != Advice::LeaveAlone {
            // Nothing to be done about a sample that cannot be had: the guest goes on by system calls.
            let _ = self.publisher.publish();
        }
        advice
    }
}

/// Never unmapped: guests read it for as long as this process lives.
fn map_page(file: &File) -> nix::Result<&'static Page> {
    let size = NonZero::new(PAGE_SIZE).ok_or(nix::errno::Errno::EINVAL)?;
    // SAFETY: a fresh mapping.
    let page: NonNull<_> = unsafe {
        mmap(
            None,
            size,
            ProtFlags::PROT_READ | ProtFlags::PROT_WRITE,
            MapFlags::MAP_SHARED,
            file,
            0,
        )
    }?;
    // SAFETY: page-aligned, writable and never unmapped; a page is made of atomics and valid in any bit pattern.
    Ok(unsafe { page.cast::<Page>().as_ref() })
}
