//! The vDSO that all guests share: one page, one instance of the image, and one publisher that takes samples when a
//! guest used the slow path.

use std::fs::File;
use std::io;
use std::num::NonZero;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::FileExt;
use std::ptr::NonNull;

use fastpath_image::{Image, Instance, Isa, Placement};
use fastpath_page::answers::{ANSWERS_OFFSET, RING_OFFSET};
use fastpath_page::{PAGE_SIZE, Writer};
use fastpath_publish::host::{Page, Publisher, PublisherConfig, Source, ThisHost, Trap, evidence, init};
use nix::fcntl::{FcntlArg, OFlag, SealFlag, fcntl, open};
use nix::sys::memfd::{MFdFlags, memfd_create};
use nix::sys::mman::{MapFlags, ProtFlags, mmap};
use nix::sys::stat::Mode;
use nix::unistd::Pid;
use syscalls::Sysno;

use crate::memory::Memory;
use crate::remote::RemoteCalls;

pub use fastpath_publish::host::Advice;

/// F_SEAL_FUTURE_WRITE, include/uapi/linux/fcntl.h (Linux 5.1).
const F_SEAL_FUTURE_WRITE: SealFlag = SealFlag::from_bits_retain(0x10);

/// A page and an image in one sealed file. Only this process can write the page, and the image is never written again.
pub struct HostedVdso {
    /// Read-only descriptor for the guests.
    file: OwnedFd,
    /// The contents of the file behind the page.
    image: Vec<u8>,
    publisher: Publisher<'static, ThisHost>,
    system_calls: &'static [u64],
    /// Offset of `__fastpath_syscall`.
    entry: u64,
}

impl HostedVdso {
    /// Makes an unseeded page: the guest's first clock read is a system call, which seeds it.
    pub fn new() -> Result<HostedVdso, Box<dyn std::error::Error>> {
        evidence::examine(evidence::Trust::Invariant)
            .map_err(|distrust| format!("{distrust}; run the guest with --no-vdso"))?;
        let image = Image::for_hosts(Isa::HOST).ok_or("libfastpath has no image for the guests of hosts here")?;
        // The instance uses no kernel function, so its bytes do not depend on the address.
        let instance = Instance::new(image, &fastpath_image::InstanceConfig::at(Placement::at(0)))?;
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
        let on_demand = PublisherConfig {
            on_demand: true,
            ..PublisherConfig::default()
        };
        Ok(HostedVdso {
            file: open(reader.as_str(), OFlag::O_RDONLY | OFlag::O_CLOEXEC, Mode::empty())?,
            image: instance.bytes().to_vec(),
            publisher: Publisher::new(page, ThisHost, on_demand),
            system_calls: image.system_calls(),
            entry: image
                .symbol("__fastpath_syscall")
                .ok_or("the image has no entry point")?,
        })
    }

    /// Maps both, and pages for answers, into a guest that has not run an instruction, and returns the image's address there.
    pub fn map_into(&self, guest: Pid, memory: &Memory) -> io::Result<u64> {
        let mut remote = RemoteCalls::begin(guest, memory)?;
        let mapped = self.map_by(&mut remote);
        remote.finish()?;
        let address = mapped?;
        // In another PID namespace or root, the guest may have opened another file by that name.
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
        const READ_WRITE: u64 = READ | ProtFlags::PROT_WRITE.bits() as u64;
        const EXECUTE: u64 = READ | ProtFlags::PROT_EXEC.bits() as u64;
        const RESERVED: u64 = (libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE) as u64;
        const IN_PLACE: u64 = (libc::MAP_SHARED | libc::MAP_FIXED) as u64;
        let path = format!("/proc/{}/fd/{}\0", std::process::id(), self.file.as_raw_fd());
        let flags = (libc::O_RDONLY | libc::O_CLOEXEC) as u64;
        let path = remote.pass(path.as_bytes())?;
        let file = remote.call(Sysno::openat, [libc::AT_FDCWD as u64, path, flags, 0, 0, 0])?;
        let (page, image) = (PAGE_SIZE as u64, self.image.len() as u64);
        // The ring and the answers are this process's own; a fork wipes them.
        let own = 2 * page;
        let area = remote.call(Sysno::mmap, [0, own + page + image, READ_WRITE, RESERVED, u64::MAX, 0])?;
        let clocks = area + own;
        remote.call(Sysno::madvise, [area, own, libc::MADV_WIPEONFORK as u64, 0, 0, 0])?;
        let ring = clocks.wrapping_add_signed(RING_OFFSET);
        remote.call(Sysno::madvise, [ring, page, libc::MADV_DONTDUMP as u64, 0, 0, 0])?;
        let answers = clocks.wrapping_add_signed(ANSWERS_OFFSET);
        remote.call(Sysno::mprotect, [answers, page, READ, 0, 0, 0])?;
        remote.call(Sysno::mmap, [clocks, page, READ, IN_PLACE, file, 0])?;
        remote.call(Sysno::mmap, [clocks + page, image, EXECUTE, IN_PLACE, file, page])?;
        remote.call(Sysno::close, [file, 0, 0, 0, 0, 0])?;
        Ok(clocks + page)
    }

    /// Returns the address of the answers for an image at this address.
    pub fn answers_at(image_address: u64) -> u64 {
        image_address - PAGE_SIZE as u64 - PAGE_SIZE as u64
    }

    /// Returns the address behind a system call instruction of an image at this address.
    pub fn behind_a_call(&self, image_address: u64) -> u64 {
        image_address + self.system_calls[0]
    }

    /// Returns the address of the entry point to which system calls are led, in an image at this address.
    pub fn entry(&self, image_address: u64) -> u64 {
        image_address + self.entry
    }

    /// Returns whether the image made a system call that returned to `pc`, because the page had no answer.
    pub fn is_own_call(&self, image_address: u64, pc: u64) -> bool {
        self.system_calls.contains(&pc.wrapping_sub(image_address))
    }

    /// Takes a sample if that helps, after the guest asked for `clock` by a system call.
    pub fn refresh_after(&self, image_address: u64, pc: u64, clock: i32) -> Advice {
        let advice = self.publisher.trapped(&Trap {
            system_calls: self.system_calls,
            image_address,
            pc,
            clock_id: clock,
            // The kernel's answer is the same in this process. The guest's memory may have changed since the answer was
            // stored.
            answered_ns: ThisHost.clock(clock),
        });
        if advice != Advice::LeaveAlone {
            // If no sample can be taken, the guest continues with system calls.
            let _ = self.publisher.publish();
        }
        advice
    }
}

/// Maps the page. It is never unmapped: guests read it for as long as this process lives.
fn map_page(file: &File) -> nix::Result<&'static Page> {
    let size = NonZero::new(PAGE_SIZE).ok_or(nix::errno::Errno::EINVAL)?;
    // SAFETY: the kernel chooses the address, so no existing mapping is replaced.
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
    // SAFETY: page-aligned, writable and never unmapped; a page consists of atomics and is valid in any bit pattern.
    Ok(unsafe { page.cast::<Page>().as_ref() })
}
