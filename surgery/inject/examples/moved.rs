//! Prints the code that fastpath moves, and where it was, for `tests/proof`: one JSON object a line.
//!
//!     cargo run --package fastpath-inject --example moved -- [FILE...]
//!
//! Each pair is code, and what is executed in its place: of the files, or of kernels' vDSOs if there is no file. The vDSOs are this
//! machine's, and those in the directory FASTPATH_KERNELS_VDSOS. Then each instance is an image as it is mapped.

use std::fmt::Write;

use fastpath_code::rescue::thunk::{Routine, Thunk, thunk, to_entry};
use fastpath_code::rescue::window::{Jump, WindowKind};
use fastpath_code::rescue::{Calls, Window, analyse, analyse_all};
use fastpath_image::{CpuFeatures, Image, Instance, InstanceConfig, Isa, KernelFunctions, Placement, Vdso, own_vdso};
use fastpath_inject::redirection::{Journal, JournalRecord, Purpose, plan, region_for};
use fastpath_inject::region;
use fastpath_page::ClockSet;

/// Bytes at an address.
type Part = (u64, Vec<u8>);

type Premise = (&'static str, u64, bool);

/// Code, and what is executed in its place.
#[derive(Clone)]
struct Pair {
    kind: &'static str,
    name: String,
    isa: Isa,
    before: Vec<Part>,
    after: Vec<Part>,
    /// Where the one and the other begin.
    from: u64,
    to: u64,
    /// Addresses of instructions that are both: before, and after.
    places: Vec<(u64, u64)>,
    /// Addresses that answer the call with this number, any call, or none but continue before.
    routines: Vec<(u64, String)>,
    /// The address of a system call that is not in the code, and its size.
    call: (u64, usize),
    /// Registers, with a value that they have, or do not have.
    premises: Vec<Premise>,
}

impl Pair {
    fn print(&self) {
        let parts = |parts: &[Part]| list(parts, |(at, bytes)| format!(r#"[{at},"{}"]"#, hex(bytes)));
        println!(
            r#"{{"kind":"{}","name":"{}","isa":"{}","before":{},"after":{},"from":{},"to":{},"places":{},"routines":{},"call":{},"premises":{}}}"#,
            self.kind,
            self.name,
            self.isa.name(),
            parts(&self.before),
            parts(&self.after),
            self.from,
            self.to,
            list(&self.places, |(before, after)| format!("[{after},{before}]")),
            list(&self.routines, |(at, answers)| format!("[{at},{answers}]")),
            list(&[self.call.0, self.call.1 as u64], u64::to_string),
            list(&self.premises, |(register, value, is_equal)| format!(
                r#"["{register}",{value},{is_equal}]"#
            )),
        );
    }

    /// Prints the same from other places.
    fn print_at(&self, from: u64, to: u64, premises: &[Premise]) {
        let name = format!("{} from {from:#x}", self.name);
        let premises = premises.to_vec();
        let pair = Pair {
            name,
            from,
            to,
            premises,
            ..self.clone()
        };
        pair.print();
    }
}

fn list<T>(items: &[T], text: impl Fn(&T) -> String) -> String {
    let items: Vec<String> = items.iter().map(text).collect();
    format!("[{}]", items.join(","))
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::new(), |mut text, byte| {
        let _ = write!(text, "{byte:02x}");
        text
    })
}

/// Where files are mapped, and where the routines are.
fn addresses(isa: Isa) -> (u64, u64) {
    if isa.is_64() {
        (0x7f12_0000_0000, 0x7abc_0000_0000)
    } else {
        (0x4000_0000, 0x6000_0000)
    }
}

/// Prints a window and its thunk, after each of the changes.
fn print_window(
    kind: &'static str,
    path: &str,
    window: &Window,
    thunk: &Thunk,
    routines: &[(u64, String)],
    number: Option<u32>,
) {
    let (bias, at) = (addresses(window.isa).0, thunk_at(window));
    let address = bias.wrapping_add(window.address);
    let end = address + window.bytes.len() as u64;
    let before = vec![(address, window.bytes.clone())];
    let mut pair = Pair {
        kind,
        name: format!("{path} {:#x}", window.address),
        isa: window.isa,
        after: [before.clone(), vec![(at, thunk.code.clone())]].concat(),
        before,
        from: address,
        to: address,
        places: Vec::new(),
        routines: routines.to_vec(),
        call: if window.kind == WindowKind::Before {
            (end, window.call_bytes)
        } else {
            (0, 0)
        },
        premises: Vec::new(),
    };
    // At a call, the site's number is set right before it. Behind it, a breakpoint may have made the call.
    let number = number.filter(|_| matches!(window.jump, Jump::AtCall(_)));
    pair.premises.extend(number.map(|number| ("RAX", number.into(), true)));
    for change in &thunk.changes {
        pair.after.push((change.address, change.replacement.clone()));
        pair.print();
    }
    let behind_call = |at: u64| ("RCX", at, true);
    if let Some(number) = number {
        let at = address + 2;
        pair.print_at(at, at, &[("RAX", number.into(), false), behind_call(at)]);
    }
    // Threads in the code are moved, and those that wait in the call.
    let in_call = thunk.in_call.map(|(to, from)| (from, to));
    for (from, to) in in_call.iter().chain(&thunk.moved) {
        let premises = [behind_call(address + 2)];
        let is_behind_call = in_call == Some((*from, *to)) && window.isa == Isa::X86_64;
        let premises = if is_behind_call { &premises[..] } else { &[] };
        pair.print_at(address + u64::from(*from), at + u64::from(*to), premises);
    }
}

fn print_windows(path: &str) {
    let bytes = std::fs::read(path).unwrap_or_default();
    for site in analyse(&bytes).unwrap_or_default().sites {
        let Ok(window) = &site.window else { continue };
        let (bias, routine) = addresses(window.isa);
        let names = ["clock_gettime", "gettimeofday", "time", "getcpu", "clock_getres"];
        let routines = names
            .iter()
            .enumerate()
            .filter_map(|(i, name)| Routine::for_call(window.isa, name, routine + 64 * i as u64));
        let routines: Vec<Routine> = routines.collect();
        let mut answers: Vec<_> = routines
            .iter()
            .map(|routine| (routine.address, routine.number.to_string()))
            .collect();
        let otherwise = routine + 0x1000;
        answers.push((otherwise, r#""before""#.to_owned()));
        let number = match site.calls {
            Calls::One(call) => Routine::for_call(window.isa, call.name(), 0).map(|routine| routine.number),
            Calls::Any => None,
        };
        for (calls, otherwise) in [(site.calls, None), (Calls::Any, None), (Calls::Any, Some(otherwise))] {
            let relay = window.jump.relays().and_then(<[_]>::first);
            let made = (window.kind != WindowKind::Vsyscall)
                .then(|| thunk(window, calls, bias, thunk_at(window), &routines, otherwise, relay));
            if let Some(thunk) = made.flatten() {
                print_window("reads of time", path, window, &thunk, &answers, number);
            }
        }
    }
    for site in analyse_all(&bytes).sites {
        let Ok(window) = &site.window else { continue };
        let (bias, entry) = addresses(window.isa);
        if let Some(thunk) = to_entry(window, bias, thunk_at(window), entry) {
            let answers = [(entry, r#""any""#.to_owned())];
            print_window("guests' calls", path, window, &thunk, &answers, None);
        }
    }
}

fn thunk_at(window: &Window) -> u64 {
    let (bias, _) = addresses(window.isa);
    (bias.wrapping_add(window.address) & !63).wrapping_sub(1 << 20)
}

/// Where the proof expects an image.
fn image_at(isa: Isa) -> u64 {
    if isa.is_64() { 0x400_0000_0000 } else { 0x4000_0000 }
}

fn print_instance(name: &str, isa: Isa, code: &[u8], symbols: Vec<(String, u64)>) {
    let symbols = list(&symbols, |(name, at)| format!(r#""{name}":{at}"#))
        .replace('[', "{")
        .replace(']', "}");
    println!(
        r#"{{"instance":"{name}","isa":"{}","code":"{}","symbols":{symbols}}}"#,
        isa.name(),
        hex(code)
    );
}

/// Functions that the image calls.
const KERNEL_FUNCTIONS: [&str; 4] = ["clock_gettime", "gettimeofday", "clock_getres", "clock_gettime64"];

/// Prints an instance of an image, with the kernel's functions behind it, and the best way to read the counter.
fn print_mapped(image: &Image) {
    let isa = image.isa();
    let at = image_at(isa);
    let place = |name: &str| KERNEL_FUNCTIONS.iter().position(|known| *known == name);
    let kernels = |name: &str| Some(at + 0x10_0000 + 0x100 * place(name)? as u64);
    let options = InstanceConfig {
        placement: Placement::at(at),
        kernel: KernelFunctions::from_fn(kernels),
        cpu: CpuFeatures {
            rdtscp: true,
            cntvctss: true,
            ..CpuFeatures::default()
        },
        serve_clocks: true,
    };
    let instance = Instance::new(image, &options).expect("a place within reach");
    print_instance(
        &format!("{} instance", isa.name()),
        isa,
        instance.bytes(),
        symbols_of(&options.kernel, at),
    );
}

/// Returns the kernel's functions, as offsets from the image.
fn symbols_of(kernel: &KernelFunctions, image_at: u64) -> Vec<(String, u64)> {
    let known = KERNEL_FUNCTIONS.into_iter().filter(|name| kernel.address(name) != 0);
    known
        .map(|name| (format!("kernel_{name}"), kernel.address(name) - image_at))
        .collect()
}

/// Prints what a redirected vDSO executes in a program that `run` starts: displaced instructions, the copy of gettimeofday, the
/// image in its place, and the slow path.
fn print_vdso(name: &str, bytes: &[u8]) -> Result<(), Box<dyn std::error::Error>> {
    let parsed = Vdso::parse(bytes)?;
    let isa = Isa::of_elf(parsed.machine(), parsed.is_64()).ok_or("its ISA is unknown")?;
    let image = Image::for_isa(isa).ok_or("there is no image")?;
    let region_at = image_at(isa) - region::IMAGE;
    let base = region_at + region::SIZE.next_multiple_of(0x1_0000);
    let redirection = plan(image, bytes, base, region_at, ClockSet::ALL)?;
    let mut region = region_for(bytes, base, region_at, ClockSet::ALL, false)?;
    let stays = region.put_slow_path()?;
    let journal: &Journal = &region.journal;
    let body = journal.records.first().filter(|record| record.in_thunk > 0);
    let body_thunk = body.map(|body| {
        // Behind the image's code, and what a gettimeofday executes that was moved.
        let (end, displaced) = (usize::from(body.in_thunk), &journal.records[2].change.original);
        let mut rest = body.change.replacement[end..].windows(displaced.len());
        let behind = end + rest.position(|bytes| bytes == displaced).unwrap_or_default();
        (
            body.change.address + behind as u64,
            body.change.replacement[behind..].to_vec(),
        )
    });
    let mut code = [&region.code[region::IMAGE as usize..], &[0; 0x1_0000][..]].concat();
    code.truncate((base - image_at(isa)) as usize);
    code.extend(bytes);
    for JournalRecord { change, .. } in stays.iter().chain(&journal.records) {
        let at = (change.address - image_at(isa)) as usize;
        code[at..at + change.replacement.len()].copy_from_slice(&change.replacement);
    }
    for export in parsed.exports() {
        let function = export
            .name
            .trim_start_matches("__vdso_")
            .trim_start_matches("__kernel_");
        let entry = base + export.offset;
        let is_patched = redirection.patches.iter().any(|patch| patch.change.address == entry);
        if !is_patched || export.name == function {
            continue;
        }
        let thunk = redirection.kernel.address(function);
        let mut places = vec![(entry, thunk)];
        let moved = redirection.moved.iter().map(|moved| (moved.from, moved.to));
        places.extend(moved.filter(|(from, _)| (entry..entry + export.size).contains(from)));
        let pair = Pair {
            kind: "the kernel's vDSO",
            name: format!("{name}, {function}"),
            isa,
            // All of it: i386 begins with a call of another function.
            before: vec![(base, bytes.to_vec())],
            after: vec![(region_at + region::ENTRY_THUNKS, redirection.thunks.clone())],
            from: entry,
            to: thunk,
            places: places.clone(),
            routines: Vec::new(),
            call: (0, 0),
            premises: Vec::new(),
        };
        places.iter().for_each(|(from, to)| pair.print_at(*from, *to, &[]));
        if let Some((at, code)) = body_thunk.clone().filter(|_| function == "clock_gettime") {
            let (after, places) = (vec![(at, code)], vec![(entry, at)]);
            Pair { after, places, ..pair }.print_at(entry, at, &[]);
        }
    }
    if let Some((body_thunk, _)) = body_thunk {
        let mut symbols = symbols_of(&redirection.kernel, image_at(isa));
        symbols.extend(symbols_of_body(&parsed, image, base, &region.journal, stays.first())?);
        symbols.push(("body_clock_gettime".to_owned(), body_thunk - image_at(isa)));
        print_instance(&format!("{name}, in its gettimeofday"), isa, &code, symbols);
    }
    Ok(())
}

/// Returns the functions of a redirected vDSO at `base`, and what its slow path has, as offsets from the image.
fn symbols_of_body(
    parsed: &Vdso,
    image: &Image,
    base: u64,
    journal: &Journal,
    table: Option<&JournalRecord>,
) -> Result<Vec<(String, u64)>, Box<dyn std::error::Error>> {
    let image_at = image_at(image.isa());
    let symbol = |name: &str| Some((name.to_owned(), base + parsed.find(name)? - image_at));
    let names = ["__vdso_clock_gettime", "__vdso_gettimeofday"];
    let mut symbols: Vec<_> = names.into_iter().filter_map(symbol).collect();
    let mut records = journal.records.iter();
    let slow_path = records.find(|record| record.purpose == Purpose::SlowPath);
    // The python side moves the symbols of the image's functions that are there.
    if let Some((slow_path, JournalRecord { change: table, .. })) = slow_path.zip(table) {
        let mut functions = image.functions().iter();
        let clock_gettime = functions.find(|function| function.name == "__vdso_clock_gettime");
        let clock_gettime = clock_gettime.ok_or("the image has no clock_gettime")?;
        // The last function of the table.
        let last = table.replacement.len() - 8;
        let thunk = i32::from_le_bytes(table.replacement[last..last + 4].try_into()?);
        let thunk = table.address.wrapping_add_signed(thunk.into());
        symbols.push(("slow_clock_gettime".to_owned(), thunk - image_at));
        symbols.push(("slow_path".to_owned(), slow_path.thunk - image_at));
        let in_image = clock_gettime.offset + clock_gettime.size;
        symbols.push(("slow_path_in_image".to_owned(), in_image));
    }
    Ok(symbols)
}

fn main() {
    let files: Vec<String> = std::env::args().skip(1).collect();
    files.iter().for_each(|path| print_windows(path));
    if !files.is_empty() {
        return;
    }
    for image in Isa::ALL.into_iter().filter_map(Image::for_isa) {
        print_mapped(image);
    }
    let own = own_vdso().ok().flatten().map(|vdso| ("vDSO".to_owned(), vdso.bytes));
    let directory = std::env::var_os("FASTPATH_KERNELS_VDSOS").and_then(|path| std::fs::read_dir(path).ok());
    let others = directory.into_iter().flatten().flatten();
    let others =
        others.filter_map(|entry| Some((entry.path().display().to_string(), std::fs::read(entry.path()).ok()?)));
    for (name, mut bytes) in own.into_iter().chain(others) {
        let size = bytes.len().next_multiple_of(fastpath_page::PAGE_SIZE);
        bytes.resize(size, 0);
        if let Err(why) = print_vdso(&name, &bytes) {
            eprintln!("moved: {name}: {why}");
        }
    }
}
