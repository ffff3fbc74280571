//! A program of another ISA that calls the functions of its image for a test: `guest/guest.c`.

use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::atomic::AtomicU32;
use std::sync::atomic::Ordering::{Relaxed, SeqCst};

use fastpath_image::{CpuFeatures, Image, Instance, InstanceConfig, Isa, KernelFunctions, Placement, Vdso};
use fastpath_page::layout::AnchorCell;
use fastpath_page::{Anchor, Page};

use crate::skip::skip;

const WRITE: u64 = 1;
const CALL: u64 = 2;
const SYSTEM_CALL: u64 = 3;
const COUNTER: u64 = 4;
const VSYSCALL: u64 = 5;

const BUFFERS: usize = 3;
const BUFFER_SIZE: usize = 64;

/// Offset of the image in the guest's arena: there is room for a page on either side, 64 KiB away and more.
const IMAGE_AT: i64 = 0x4_0000;

/// Returns an argument that is the address of a buffer.
pub const fn buffer(index: u64) -> u64 {
    1 << 63 | index
}

/// The result and the buffers after a call.
pub struct Answer {
    pub result: i64,
    pub buffers: [[u8; BUFFER_SIZE]; BUFFERS],
}

impl Answer {
    /// Returns a number in a buffer, of the size of a `long` of the ISA.
    pub fn long(&self, isa: Isa, buffer: usize, index: usize) -> i64 {
        if isa.is_64() {
            self.long64(buffer, index)
        } else {
            self.word(buffer, index).into()
        }
    }

    pub fn long64(&self, buffer: usize, index: usize) -> i64 {
        i64::from_le_bytes(self.buffers[buffer][8 * index..][..8].try_into().unwrap())
    }

    pub fn word(&self, buffer: usize, index: usize) -> i32 {
        i32::from_le_bytes(self.buffers[buffer][4 * index..][..4].try_into().unwrap())
    }
}

/// Settings of a guest's image.
pub struct Setup {
    pub kernel: KernelFunctions,
    pub page_offset: i64,
    pub serve_clocks: bool,
    pub cpu: CpuFeatures,
}

impl Default for Setup {
    fn default() -> Setup {
        Setup {
            kernel: KernelFunctions::NONE,
            page_offset: Image::DEFAULT_PAGE_OFFSET,
            serve_clocks: true,
            cpu: CpuFeatures::default(),
        }
    }
}

pub struct Guest {
    pub isa: Isa,
    pub image: &'static Image,
    /// The address of a function that stores its arguments in the last buffer and returns 42.
    pub spy: u64,
    pub page: Page,
    process: Child,
    requests: ChildStdin,
    answers: ChildStdout,
    arena: u64,
    page_offset: i64,
    vdso: Option<Vdso>,
}

impl Drop for Guest {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

fn runs(program: &str) -> bool {
    let output = Command::new(program).arg("--version").output();
    output.is_ok_and(|output| output.status.success())
}

/// Returns the emulator for an ISA, unless this CPU runs it.
fn emulator(isa: Isa) -> Option<String> {
    let is_native = isa == Isa::HOST || (isa.is_x86() && Isa::HOST.is_x86());
    (!is_native).then(|| format!("qemu-{isa}"))
}

/// Compiles the guest program, with the toolchain of other ISAs' images.
fn build(isa: Isa) -> PathBuf {
    let here = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/guest");
    let vdso = Path::new(env!("CARGO_MANIFEST_DIR")).join("vdso");
    // Distinguishes tests that run side by side.
    static BUILT: AtomicU32 = AtomicU32::new(0);
    let number = BUILT.fetch_add(1, Relaxed);
    let out = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("guest-{isa}-{number}"));
    let generated = out.with_extension("h");
    std::fs::create_dir_all(&generated).unwrap();
    std::fs::write(generated.join("isa.h"), fastpath_isa::c::header(isa)).unwrap();
    let mut command = Command::new("clang");
    command
        .arg(format!("--target={}", isa.facts().clang_target))
        .args(isa.facts().machine_flags)
        .args([
            "-std=c11",
            "-O1",
            "-ffreestanding",
            "-fno-stack-protector",
            "-fno-pic",
            "-Wall",
            "-Wextra",
            "-Werror",
        ])
        .args(["-static", "-nostdlib", "-fuse-ld=lld"]);
    for folder in [
        vdso.join(isa.name()),
        vdso.join("x86"),
        vdso,
        here.clone(),
        generated.clone(),
    ] {
        command.arg("-I").arg(folder);
    }
    let output = command.arg(here.join("guest.c")).arg("-o").arg(&out).output().unwrap();
    let _ = std::fs::remove_dir_all(generated);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    out
}

impl Guest {
    /// Starts a guest for each ISA that can be run here, and runs the test with it. Fails if there is none.
    pub fn each(test: impl Fn(&mut Guest)) {
        let ran = Isa::ALL.into_iter().filter(|&isa| Guest::run(isa, &test)).count();
        assert!(ran > 0 || !runs("clang"), "no ISA could be tested");
    }

    /// Does the same for one ISA. Returns whether it could be run.
    pub fn run(isa: Isa, test: impl Fn(&mut Guest)) -> bool {
        let started = Guest::start(isa);
        let ran = started.is_some();
        if let Some(mut guest) = started {
            test(&mut guest);
        }
        ran
    }

    fn start(isa: Isa) -> Option<Guest> {
        let Some(image) = Image::for_isa(isa) else {
            skip(format_args!(
                "no image for {isa} on this machine: it takes clang and lld"
            ));
            return None;
        };
        if !runs("clang") || !runs("ld.lld") {
            skip("no clang and lld on this machine");
            return None;
        }
        let emulator = emulator(isa);
        if let Some(emulator) = emulator.as_ref().filter(|emulator| !runs(emulator)) {
            skip(format_args!("no {emulator} on this machine"));
            return None;
        }
        let program = build(isa);
        let mut command = match &emulator {
            Some(emulator) => Command::new(emulator),
            None => Command::new(&program),
        };
        if emulator.is_some() {
            command.arg(&program);
        }
        let mut process = command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap_or_else(|error| panic!("cannot run a program of {isa}: {error}"));
        let (requests, mut answers) = (process.stdin.take().unwrap(), process.stdout.take().unwrap());
        let mut hello = [[0; 8]; 2];
        answers.read_exact(hello.as_flattened_mut()).unwrap();
        let _ = std::fs::remove_file(program);
        let [arena, spy] = hello.map(u64::from_le_bytes);
        let mut guest = Guest {
            isa,
            image,
            spy,
            page: Page::zeroed(),
            process,
            requests,
            answers,
            arena,
            page_offset: 0,
            vdso: None,
        };
        guest.install(Setup::default());
        Some(guest)
    }

    pub fn image_address(&self) -> u64 {
        self.arena.wrapping_add_signed(IMAGE_AT)
    }

    /// Gives the guest an image, and an empty page for it.
    pub fn install(&mut self, setup: Setup) {
        let options = InstanceConfig {
            placement: Placement {
                address: self.image_address(),
                page_offset: setup.page_offset,
            },
            kernel: setup.kernel,
            cpu: setup.cpu,
            serve_clocks: setup.serve_clocks,
        };
        let instance = Instance::new(self.image, &options).unwrap();
        self.vdso = Some(Vdso::parse(instance.bytes()).unwrap());
        let mut bytes = instance.bytes().to_vec();
        if self.isa == Isa::Arm {
            stop_counter(&mut bytes);
        }
        self.write(IMAGE_AT, &bytes);
        self.page_offset = setup.page_offset;
        self.page = Page::zeroed();
        self.send_page();
    }

    /// Copies the page to the guest.
    pub fn send_page(&mut self) {
        // SAFETY: a page is plain bytes, and no thread writes to this one meanwhile.
        let bytes =
            unsafe { std::slice::from_raw_parts((&raw const self.page).cast::<u8>(), size_of::<Page>()) }.to_vec();
        self.write(IMAGE_AT + self.page_offset, &bytes);
    }

    /// Stores both latches: the newest anchor, the one before it, and the sequence count.
    pub fn lay(&mut self, newest: &Anchor, previous: Option<&Anchor>, seq: u32) {
        for latch in [&self.page.hres, &self.page.raw] {
            store(&latch.copy[0], newest);
            if let Some(previous) = previous {
                store(&latch.copy[1], previous);
            }
            latch.copy[0].seq.store(seq, SeqCst);
        }
        self.send_page();
    }

    /// Returns the full name of a function.
    pub fn name(&self, function: &str) -> String {
        format!("{}{function}", self.isa.facts().prefix)
    }

    /// Returns the address of a function in the guest, as a loader finds it.
    pub fn address(&self, name: &str) -> Option<u64> {
        let offset = self.vdso.as_ref().unwrap().find(name)?;
        let address = self.image_address().wrapping_add(offset);
        let is_64 = self.vdso.as_ref().unwrap().is_64();
        Some(if is_64 { address } else { address & u64::from(u32::MAX) })
    }

    pub fn call(&mut self, function: &str, arguments: [u64; 3]) -> Answer {
        let name = self.name(function);
        let address = self.address(&name).unwrap_or_else(|| panic!("the image has no {name}"));
        self.request(CALL, address, arguments, &[])
    }

    pub fn system_call(&mut self, number: u64, arguments: [u64; 3]) -> Answer {
        self.request(SYSTEM_CALL, number, arguments, &[])
    }

    /// Returns the result of the ISA's fp_read_counter().
    pub fn counter(&mut self) -> u64 {
        self.request(COUNTER, 0, [0; 3], &[]).result as u64
    }

    /// Makes a system call through the image's `__kernel_vsyscall`.
    pub fn vsyscall(&mut self, arguments: [u64; 3]) -> Answer {
        let address = self.address("__kernel_vsyscall").unwrap();
        self.request(VSYSCALL, address, arguments, &[])
    }

    /// Returns the kernel's own vDSO in the guest, and its address; `None` under an emulator.
    pub fn kernel_vdso(&self) -> Option<(Vdso, u64)> {
        if emulator(self.isa).is_some() {
            return None;
        }
        let pid = self.process.id();
        let maps = std::fs::read_to_string(format!("/proc/{pid}/maps")).unwrap();
        let line = maps.lines().find(|line| line.ends_with("[vdso]"))?;
        let (start, rest) = line.split_once('-')?;
        let start = u64::from_str_radix(start, 16).unwrap();
        let end = u64::from_str_radix(rest.split(' ').next()?, 16).unwrap();
        let mut bytes = vec![0; (end - start) as usize];
        let memory = std::fs::File::open(format!("/proc/{pid}/mem")).unwrap();
        std::os::unix::fs::FileExt::read_exact_at(&memory, &mut bytes, start).unwrap();
        Some((Vdso::parse(&bytes).unwrap(), start))
    }

    pub fn pid(&self) -> i32 {
        self.process.id() as i32
    }

    fn write(&mut self, at: i64, bytes: &[u8]) {
        self.request(WRITE, at as u64, [bytes.len() as u64, 0, 0], bytes);
    }

    fn request(&mut self, kind: u64, target: u64, arguments: [u64; 3], payload: &[u8]) -> Answer {
        let [a, b, c] = arguments;
        let mut message: Vec<u8> = [kind, target, a, b, c].into_iter().flat_map(u64::to_le_bytes).collect();
        message.extend_from_slice(payload);
        self.requests.write_all(&message).unwrap();
        let mut answer = [0; 8 + BUFFERS * BUFFER_SIZE];
        if let Err(error) = self.answers.read_exact(&mut answer) {
            panic!(
                "the program of {} is gone ({:?}): {error}",
                self.isa,
                self.process.wait()
            );
        }
        let (result, buffers) = answer.split_at(8);
        Answer {
            result: i64::from_le_bytes(result.try_into().unwrap()),
            buffers: std::array::from_fn(|index| buffers[index * BUFFER_SIZE..][..BUFFER_SIZE].try_into().unwrap()),
        }
    }
}

/// Stores an anchor by plain stores, so that tests can also store what a correct writer would not.
fn store(cell: &AnchorCell, anchor: &Anchor) {
    cell.clocks.store(anchor.clocks.0, Relaxed);
    cell.floors.store(anchor.clocks.0, Relaxed);
    cell.base_cycles.store(anchor.base_cycles, Relaxed);
    cell.mult.store(anchor.rate.mult, Relaxed);
    cell.shift.store(anchor.rate.shift, Relaxed);
    cell.cap_cycles.store(anchor.cap_cycles, Relaxed);
    for (cell, base) in cell.base.iter().zip(&anchor.base) {
        cell.sec.store(base.sec, Relaxed);
        cell.nsec_shifted.store(base.nsec_shifted, Relaxed);
    }
}

/// Replaces each read of the counter by the loading of zero, because qemu-user has no counter for Arm. The zero shows
/// in all that is computed from it. The counter itself is read where a whole machine is emulated.
fn stop_counter(image: &mut [u8]) {
    const ISB: u32 = 0xf57f_f06f;
    let word = |image: &[u8], at: usize| u32::from_le_bytes(image[at..at + 4].try_into().unwrap());
    let mut reads = 0;
    for at in (0..image.len() - 8).step_by(4) {
        let read = word(image, at + 4);
        if word(image, at) != ISB || read & 0xfff0_0fff != 0xec50_0f1e {
            continue;
        }
        // mov Rt, #0; mov Rt2, #0
        let zero = |register: u32| (0xe3a0_0000 | register << 12).to_le_bytes();
        image[at..at + 4].copy_from_slice(&zero(read >> 12 & 0xf));
        image[at + 4..at + 8].copy_from_slice(&zero(read >> 16 & 0xf));
        reads += 1;
    }
    assert!(reads >= 3, "{reads} reads of the counter");
}
