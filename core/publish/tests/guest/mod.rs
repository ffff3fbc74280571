//! A guest in this process: the image for hosts with its pages, and raw system calls with every register stated.

use std::ptr::NonNull;

use fastpath_page::answers::{Answers, Identity, Mapped};
use fastpath_page::{PAGE_SIZE, Writer};
use fastpath_publish::host::image::{Image, Instance, InstanceConfig, Isa, Placement};
use fastpath_publish::host::{Page, init};

use crate::region;

/// Pages below the image: ring, answers, clocks.
const PAGES: usize = 3;

/// The image for hosts and its pages.
pub struct Guest {
    region: NonNull<u8>,
    image: &'static Image,
}

// SAFETY: the region stays mapped until the process ends, and is accessed by atomic operations and by the image.
unsafe impl Sync for Guest {}

/// The general registers of a call, and the flags. A system call changes few of them.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Registers {
    /// x86-64: rax, rbx, rcx, rdx, rsi, rdi, rbp, r8 to r15; AArch64: x0 to x17, x19 to x30.
    pub general: [u64; COUNT],
    pub flags: u64,
}

impl Guest {
    /// Maps everything; the answers are empty.
    pub fn new() -> Guest {
        let image = Image::for_hosts(Isa::HOST).expect("this ISA has one");
        let length = image.size() + PAGES * PAGE_SIZE;
        let region = region::map(length);
        let guest = Guest { region, image };
        let address = guest.region.addr().get() + PAGES * PAGE_SIZE;
        let instance = Instance::new(image, &InstanceConfig::at(Placement::at(address as u64))).expect("an instance");
        // SAFETY: inside of the mapping just made, which nothing else uses.
        unsafe {
            let code = guest.region.add(PAGES * PAGE_SIZE);
            code.copy_from(NonNull::from(instance.bytes()).cast(), instance.bytes().len());
            let code = code.as_ptr().cast();
            assert_eq!(libc::mprotect(code, image.size(), libc::PROT_READ | libc::PROT_EXEC), 0);
            assert_eq!(
                libc::madvise(region.as_ptr().cast(), 2 * PAGE_SIZE, libc::MADV_WIPEONFORK),
                0
            );
        }
        Writer::new(guest.page()).init(&init::of_this_host());
        guest
    }

    /// Returns the clocks' page.
    pub fn page(&self) -> &'static Page {
        // SAFETY: mapped until the process ends, aligned, and a page is made of atomics.
        unsafe { self.region.add(2 * PAGE_SIZE).cast().as_ref() }
    }

    /// Returns the writer of the answers.
    pub fn answers(&self) -> Answers<Mapped> {
        // SAFETY: mapped until the process ends, and aligned.
        Answers(unsafe { Mapped::new(self.region.add(PAGE_SIZE)) })
    }

    /// Says that the process has one thread, so that the image may know its memory. No test unmaps memory in another one.
    pub fn has_one_thread(&self) {
        self.answers().set(Identity::Tid, std::process::id()).expect("mapped");
    }

    /// Returns a copy of the ring.
    pub fn ring(&self) -> Vec<u8> {
        // SAFETY: mapped until the process ends; the callers have no other thread in the ring.
        unsafe { std::slice::from_raw_parts(self.region.as_ptr(), PAGE_SIZE) }.to_vec()
    }

    /// Returns the address of a function of the image.
    pub fn function(&self, name: &str) -> u64 {
        let offset = self.image.symbol(name).expect("it is exported");
        (self.region.addr().get() + PAGES * PAGE_SIZE) as u64 + offset
    }

    /// Makes a call by `__fastpath_syscall`.
    pub fn call(&self, number: libc::c_long, arguments: [u64; 3]) -> i64 {
        let mut registers = Registers::for_call(number, arguments);
        self.enter(&mut registers);
        registers.result()
    }

    /// The same with all registers.
    pub fn enter(&self, registers: &mut Registers) {
        // SAFETY: the code keeps all registers that the compiler expects to be kept.
        unsafe { fp_test_call(registers, self.function("__fastpath_syscall")) }
    }

    /// Asks `__fastpath_answer`, for a guest whose stack pointer is 0.
    pub fn ask(&self, number: libc::c_long, arguments: [u64; 3]) -> Option<i64> {
        type Answer = unsafe extern "C" fn(libc::c_ulong, *const i64, libc::c_ulong, *mut i64) -> libc::c_int;
        // SAFETY: the function has this type (core/image/vdso/hosts/answers.c).
        let ask: Answer = unsafe { std::mem::transmute(self.function("__fastpath_answer")) };
        let arguments = [arguments[0] as i64, arguments[1] as i64, arguments[2] as i64, 0, 0, 0];
        let mut result = 0;
        // SAFETY: both pointers are valid for as many words.
        (unsafe { ask(number as libc::c_ulong, arguments.as_ptr(), 0, &mut result) } == 1).then_some(result)
    }
}

/// Makes a call by a system call instruction.
pub fn kernel(registers: &mut Registers) {
    // SAFETY: as in `enter`; 0 makes the call by the instruction.
    unsafe { fp_test_call(registers, 0) }
}

unsafe extern "C" {
    fn fp_test_call(registers: *mut Registers, entry: u64);
}

#[cfg(target_arch = "x86_64")]
const COUNT: usize = 15;
#[cfg(target_arch = "aarch64")]
const COUNT: usize = 30;

#[cfg(target_arch = "x86_64")]
impl Registers {
    /// The registers of a call; the others have values to be recognized.
    pub fn for_call(number: libc::c_long, arguments: [u64; 3]) -> Registers {
        let mut general =
            std::array::from_fn(|index| 0x1111_0000_2222_0000_u64.wrapping_mul(index as u64 + 1) + index as u64);
        general[0] = number as u64;
        general[5] = arguments[0];
        general[4] = arguments[1];
        general[3] = arguments[2];
        Registers { general, flags: 0x202 }
    }

    /// Returns the result.
    pub fn result(&self) -> i64 {
        self.general[0] as i64
    }

    /// Every combination of the arithmetic flags, and the direction flag.
    pub fn all_flags() -> impl Iterator<Item = u64> {
        const BITS: [u64; 7] = [1, 1 << 2, 1 << 4, 1 << 6, 1 << 7, 1 << 10, 1 << 11];
        (0..1 << BITS.len()).map(|set: u64| {
            let bits = BITS.iter().enumerate();
            bits.filter(|(at, _)| set >> at & 1 == 1)
                .fold(0x202, |all, (_, bit)| all | bit)
        })
    }
}

// The red zone is filled, and must be as it was: else rax is 0xdead.
#[cfg(target_arch = "x86_64")]
std::arch::global_asm!(
    ".text",
    "fp_test_call:",
    "push %rbx; push %rbp; push %r12; push %r13; push %r14; push %r15",
    "push %rdi",
    "sub $512, %rsp",
    "mov %rsi, 8(%rsp)",
    "movabs $0x5555555566666666, %rax",
    "mov $-128, %rcx",
    "1: mov %rax, (%rsp, %rcx)",
    "add $8, %rcx",
    "jnz 1b",
    "mov %rdi, %r11",
    "pushq 120(%r11); popfq",
    // The push has changed the red zone.
    "mov %rax, -8(%rsp)",
    "mov 0(%r11), %rax",
    "mov 8(%r11), %rbx",
    "mov 24(%r11), %rdx",
    "mov 32(%r11), %rsi",
    "mov 40(%r11), %rdi",
    "mov 48(%r11), %rbp",
    "mov 56(%r11), %r8",
    "mov 64(%r11), %r9",
    "mov 72(%r11), %r10",
    "mov 88(%r11), %r12",
    "mov 96(%r11), %r13",
    "mov 104(%r11), %r14",
    "mov 112(%r11), %r15",
    "mov 8(%rsp), %r11",
    "lea 2f(%rip), %rcx",
    // jrcxz tests without changing a flag.
    "xchg %rcx, %r11",
    "jrcxz 3f",
    "xchg %rcx, %r11",
    "jmp *%r11",
    "3: mov %r11, %rcx",
    "syscall",
    "2:",
    "mov %rbx, 16(%rsp)",
    "mov 512(%rsp), %rbx",
    "mov %rax, 0(%rbx)",
    "mov %rcx, 16(%rbx)",
    "mov %rdx, 24(%rbx)",
    "mov %rsi, 32(%rbx)",
    "mov %rdi, 40(%rbx)",
    "mov %rbp, 48(%rbx)",
    "mov %r8, 56(%rbx)",
    "mov %r9, 64(%rbx)",
    "mov %r10, 72(%rbx)",
    "mov %r11, 80(%rbx)",
    "mov %r12, 88(%rbx)",
    "mov %r13, 96(%rbx)",
    "mov %r14, 104(%rbx)",
    "mov %r15, 112(%rbx)",
    "mov -8(%rsp), %rdx",
    "pushfq; popq 120(%rbx)",
    "cld",
    "mov %rdx, -8(%rsp)",
    "mov 16(%rsp), %rax",
    "mov %rax, 8(%rbx)",
    "movabs $0x5555555566666666, %rax",
    "mov $-128, %rcx",
    "4: cmp %rax, (%rsp, %rcx)",
    "jne 5f",
    "add $8, %rcx",
    "jnz 4b",
    "jmp 6f",
    "5: movq $0xdead, 0(%rbx)",
    "6: add $520, %rsp",
    "pop %r15; pop %r14; pop %r13; pop %r12; pop %rbp; pop %rbx",
    "ret",
    options(att_syntax)
);

#[cfg(target_arch = "aarch64")]
impl Registers {
    /// The registers of a call; the others have values to be recognized.
    pub fn for_call(number: libc::c_long, arguments: [u64; 3]) -> Registers {
        let mut general =
            std::array::from_fn(|index| 0x1111_0000_2222_0000_u64.wrapping_mul(index as u64 + 1) + index as u64);
        general[..3].copy_from_slice(&arguments);
        general[8] = number as u64;
        Registers { general, flags: 0 }
    }

    /// Returns the result.
    pub fn result(&self) -> i64 {
        self.general[0] as i64
    }

    /// Every combination of the flags.
    pub fn all_flags() -> impl Iterator<Item = u64> {
        (0..16_u64).map(|flags| flags << 28)
    }
}

#[cfg(target_arch = "aarch64")]
std::arch::global_asm!(
    ".text",
    "fp_test_call:",
    "stp x29, x30, [sp, #-112]!",
    "stp x19, x20, [sp, #16]",
    "stp x21, x22, [sp, #32]",
    "stp x23, x24, [sp, #48]",
    "stp x25, x26, [sp, #64]",
    "stp x27, x28, [sp, #80]",
    "stp x0, x1, [sp, #96]",
    // The entry, where the code below finds it without a register.
    "adrp x2, fp_test_entry",
    "add x2, x2, :lo12:fp_test_entry",
    "str x1, [x2]",
    "ldr x1, [x0, #240]",
    "msr nzcv, x1",
    "ldp x19, x20, [x0, #144]",
    "ldp x21, x22, [x0, #160]",
    "ldp x23, x24, [x0, #176]",
    "ldp x25, x26, [x0, #192]",
    "ldp x27, x28, [x0, #208]",
    "ldp x29, x30, [x0, #224]",
    "ldp x2, x3, [x0, #16]",
    "ldp x4, x5, [x0, #32]",
    "ldp x6, x7, [x0, #48]",
    "ldp x8, x9, [x0, #64]",
    "ldp x10, x11, [x0, #80]",
    "ldp x12, x13, [x0, #96]",
    "ldp x14, x15, [x0, #112]",
    "ldp x16, x17, [x0, #128]",
    "ldp x0, x1, [x0]",
    "stp x16, x17, [sp, #-16]!",
    "adrp x17, fp_test_entry",
    "ldr x17, [x17, :lo12:fp_test_entry]",
    "adr x16, 2f",
    "cbz x17, 3f",
    "br x17",
    "3: ldp x16, x17, [sp], #16",
    "svc #0",
    "b 4f",
    "2: ldp x16, x17, [sp], #16",
    "4: stp x0, x1, [sp, #-16]!",
    "ldr x0, [sp, #112]",
    "stp x2, x3, [x0, #16]",
    "stp x4, x5, [x0, #32]",
    "stp x6, x7, [x0, #48]",
    "stp x8, x9, [x0, #64]",
    "stp x10, x11, [x0, #80]",
    "stp x12, x13, [x0, #96]",
    "stp x14, x15, [x0, #112]",
    "stp x16, x17, [x0, #128]",
    "stp x19, x20, [x0, #144]",
    "stp x21, x22, [x0, #160]",
    "stp x23, x24, [x0, #176]",
    "stp x25, x26, [x0, #192]",
    "stp x27, x28, [x0, #208]",
    "stp x29, x30, [x0, #224]",
    "mrs x1, nzcv",
    "str x1, [x0, #240]",
    "ldp x2, x3, [sp], #16",
    "stp x2, x3, [x0]",
    "ldp x19, x20, [sp, #16]",
    "ldp x21, x22, [sp, #32]",
    "ldp x23, x24, [sp, #48]",
    "ldp x25, x26, [sp, #64]",
    "ldp x27, x28, [sp, #80]",
    "ldp x29, x30, [sp], #112",
    "ret",
    ".local fp_test_entry",
    ".comm fp_test_entry, 8, 8",
);
