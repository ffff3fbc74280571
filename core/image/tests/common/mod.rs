//! A page and an image, mapped in this process as they would be in a target.

// Each test file uses a part.
#![allow(dead_code)]

use std::arch::asm;
use std::ptr::NonNull;

use fastpath_image::{Image, Instance, InstanceConfig, KernelFunctions, MappedVdso, Placement, Vdso, own_vdso};
use fastpath_page::{PAGE_SIZE, Page};

pub type ClockGettime = unsafe extern "C" fn(i32, *mut Timespec) -> i32;
pub type Gettimeofday = unsafe extern "C" fn(*mut Timespec, *mut [i32; 2]) -> i32;

pub const REALTIME: i32 = 0;
pub const MONOTONIC: i32 = 1;
pub const MONOTONIC_RAW: i32 = 4;
pub const BOOTTIME: i32 = 7;
pub const TAI: i32 = 11;
/// The clocks that a page answers.
pub const PAGE_CLOCKS: [i32; 5] = [REALTIME, MONOTONIC, MONOTONIC_RAW, BOOTTIME, TAI];

pub const SYS_GETTIMEOFDAY: i64 = 96;
pub const SYS_CLOCK_GETTIME: i64 = 228;

/// A timespec, also used as a timeval.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Timespec {
    pub sec: i64,
    pub fraction: i64,
}

/// Page and image: the page as a target maps it, read-only, and as its publisher writes it.
pub struct Mapped {
    image: NonNull<u8>,
    pub page: &'static Page,
    vdso: Vdso,
}

impl Mapped {
    /// Maps an image with its page below. It is never unmapped: tests are short.
    pub fn new(kernel: KernelFunctions) -> Mapped {
        Mapped::with(kernel, Image::DEFAULT_PAGE_OFFSET, true)
    }

    /// Maps an image with the page elsewhere, or without served clocks.
    pub fn with(kernel: KernelFunctions, page_offset: i64, serve_clocks: bool) -> Mapped {
        let image_size = Image::host().size();
        // From the lower of the two to the end of the higher.
        let (image_at, page_at) = ((-page_offset).max(0) as usize, page_offset.max(0) as usize);
        let size = (image_at + image_size).max(page_at + PAGE_SIZE);
        // SAFETY: new mappings, the fixed ones inside the first; the image's bytes fit, and everything stays mapped.
        unsafe {
            let memfd = libc::memfd_create(c"fastpath-test-page".as_ptr(), 0);
            assert!(memfd >= 0, "{}", std::io::Error::last_os_error());
            assert_eq!(libc::ftruncate(memfd, PAGE_SIZE as i64), 0);
            let map = |at: *mut libc::c_void, size, protection, flags, fd| {
                let mapping = libc::mmap(at, size, protection, flags, fd, 0);
                assert_ne!(mapping, libc::MAP_FAILED, "{}", std::io::Error::last_os_error());
                mapping.cast::<u8>()
            };
            let writable = libc::PROT_READ | libc::PROT_WRITE;
            let private = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
            let base = map(std::ptr::null_mut(), size, writable, private, -1);
            map(
                base.add(page_at).cast(),
                PAGE_SIZE,
                libc::PROT_READ,
                libc::MAP_SHARED | libc::MAP_FIXED,
                memfd,
            );
            let publisher = map(std::ptr::null_mut(), PAGE_SIZE, writable, libc::MAP_SHARED, memfd);
            libc::close(memfd);

            let image = base.add(image_at);
            let options = InstanceConfig {
                kernel,
                serve_clocks,
                ..InstanceConfig::at(Placement {
                    address: image as u64,
                    page_offset,
                })
            };
            let instance = Instance::new(Image::host(), &options).unwrap();
            image.copy_from_nonoverlapping(instance.bytes().as_ptr(), instance.bytes().len());
            let executable = libc::PROT_READ | libc::PROT_EXEC;
            assert_eq!(libc::mprotect(image.cast(), image_size, executable), 0);
            Mapped {
                image: NonNull::new(image).unwrap(),
                page: &*publisher.cast::<Page>(),
                vdso: Vdso::parse(instance.bytes()).unwrap(),
            }
        }
    }

    /// Maps an image as in a process with the kernel's vDSO.
    pub fn with_kernel() -> Mapped {
        Mapped::new(kernel_functions())
    }

    /// Maps an image as in a process without a vDSO.
    pub fn without_kernel() -> Mapped {
        Mapped::new(KernelFunctions::NONE)
    }

    /// Returns the addresses of the image.
    pub fn code(&self) -> std::ops::Range<u64> {
        let start = self.image.as_ptr() as u64;
        start..start + Image::host().size() as u64
    }

    pub fn address(&self, name: &str) -> Option<usize> {
        Some((self.image.as_ptr() as usize).wrapping_add(self.vdso.find(name)? as usize))
    }

    /// Returns an exported function.
    ///
    /// # Safety
    /// `F` is a function pointer with the arguments and result of the function of this name.
    pub unsafe fn function<F: Copy>(&self, name: &str) -> F {
        let address = self
            .address(name)
            .unwrap_or_else(|| panic!("the image exports no {name}"));
        // SAFETY: the caller guarantees that it is a function of this type.
        unsafe { std::mem::transmute_copy(&address) }
    }

    pub fn clock_gettime(&self, id: i32) -> (i32, Timespec) {
        let mut ts = Timespec::default();
        // SAFETY: the type is clock_gettime's, and the pointer is valid.
        let code = unsafe { self.function::<ClockGettime>("__vdso_clock_gettime")(id, &mut ts) };
        (code, ts)
    }
}

/// Returns the vDSO that the kernel gave this process.
pub fn kernel_vdso() -> MappedVdso {
    own_vdso().unwrap().expect("these tests need a kernel with a vDSO")
}

/// Returns the functions of that vDSO.
pub fn kernel_functions() -> KernelFunctions {
    let kernel = kernel_vdso();
    KernelFunctions::from_vdso(&kernel.vdso, kernel.base)
}

/// Makes a system call of up to three arguments, and returns the kernel's own result.
///
/// # Safety
/// As the system call demands.
pub unsafe fn syscall(number: i64, arguments: [usize; 3]) -> i64 {
    let result;
    // SAFETY: the caller guarantees the arguments; the kernel changes rcx and r11 only.
    unsafe {
        asm!("syscall", inlateout("rax") number => result, in("rdi") arguments[0], in("rsi") arguments[1],
             in("rdx") arguments[2], lateout("rcx") _, lateout("r11") _);
    }
    result
}

/// Returns the kernel's answer to clock_gettime or clock_getres.
pub fn kernel_clock(number: i64, id: i32) -> (i32, Timespec) {
    let mut ts = Timespec::default();
    // SAFETY: both calls take a clock id and a pointer to a timespec, which is valid.
    let code = unsafe { syscall(number, [id as usize, &raw mut ts as usize, 0]) };
    (code as i32, ts)
}

/// Returns the counter, ordered.
pub fn counter() -> u64 {
    // SAFETY: SSE2 and RDTSC are part of x86-64, and nothing here turns RDTSC off.
    unsafe {
        std::arch::x86_64::_mm_lfence();
        std::arch::x86_64::_rdtsc()
    }
}
