#![allow(clippy::single_range_in_vec_init, reason = "a list of functions, which may be one")]

use super::*;
use crate::rescue::file::Part;

/// Address of the code of these tests, 16 bytes before a page's end.
const AT: u64 = 0x40_0ff0;
/// mov $228, %eax
const CLOCK_GETTIME: &[u8] = &[0xb8, 0xe4, 0, 0, 0];
const SYSCALL: &[u8] = &[0x0f, 0x05];
/// ret
const RET: &[u8] = &[0xc3];

/// Returns the window of the `syscall` after `before`, in a function at `at` that goes on with `behind`.
fn window_at(at: u64, before: &[&[u8]], behind: &[&[u8]], change: impl Fn(&mut File<'_>)) -> Result<Window, Reason> {
    window_of(at, before, SYSCALL, behind, change)
}

/// The same for another system call.
fn window_of(
    at: u64,
    before: &[&[u8]],
    call: &[u8],
    behind: &[&[u8]],
    change: impl Fn(&mut File<'_>),
) -> Result<Window, Reason> {
    let before = before.concat();
    let code = [&before, call, &behind.concat()].concat();
    let mut file = File {
        isa: fastpath_isa::Isa::X86_64,
        code: vec![Part {
            address: at,
            bytes: &code,
        }],
        data: Vec::new(),
        is_fixed: true,
        functions: vec![at..at + code.len() as u64],
        labels: Vec::new(),
        objects: Vec::new(),
        data_sections: Vec::new(),
        relocated: Vec::new(),
        entry: at,
    };
    change(&mut file);
    let site = at + before.len() as u64;
    find(&file, &Flow::around(&file, [site]), site, CallKind::SystemCall, false)
}

fn window(before: &[&[u8]], behind: &[&[u8]]) -> Result<Window, Reason> {
    window_at(0x40_0000, before, behind, |_| {})
}

#[test]
fn the_load_of_the_number_right_before_the_call_is_replaced() {
    let found = window(&[CLOCK_GETTIME], &[RET]).unwrap();
    assert_eq!(
        (found.kind, found.address, &*found.bytes),
        (WindowKind::Before, 0x40_0000, CLOCK_GETTIME)
    );
}

#[test]
fn bytes_of_data_beside_code_are_no_call_though_code_takes_their_address() {
    let in_data = |data: std::ops::Range<u64>| {
        window_at(0x40_0000, &[CLOCK_GETTIME], &[RET], |file| {
            file.labels.push(0x40_0000);
            file.data_sections = vec![data.clone()];
        })
    };
    assert_eq!(in_data(0x40_0000..0x40_0007), Err(Reason::NotReached));
    assert!(in_data(0x40_0007..0x40_0010).is_ok());
}

#[test]
fn several_instructions_are_replaced_where_the_last_one_is_too_short() {
    // mov %rsp, %rsi; xor %edi, %edi
    let found = window(&[CLOCK_GETTIME, &[0x48, 0x89, 0xe6], &[0x31, 0xff]], &[RET]).unwrap();
    assert_eq!((found.kind, found.address), (WindowKind::Before, 0x40_0005));
    assert_eq!(found.bytes, [0x48, 0x89, 0xe6, 0x31, 0xff]);
}

#[test]
fn what_follows_is_replaced_where_nothing_before_can_be() {
    // A label right before the call; cmp $-4095, %rax.
    let compare: &[u8] = &[0x48, 0x3d, 1, 0xf0, 0xff, 0xff];
    let jump_to_call: &[u8] = &[0xeb, 0x00];
    let found = window(&[jump_to_call], &[compare, RET]).unwrap();
    assert_eq!((found.kind, found.address), (WindowKind::Behind, 0x40_0002));
    assert_eq!(found.bytes, [SYSCALL, compare].concat());
    // Too little follows.
    assert_eq!(window(&[jump_to_call], &[RET]), Err(Reason::NoRoom));
}

#[test]
fn a_jump_to_the_call_itself_finds_it_unchanged() {
    // jmp to the syscall, behind it
    let found = window(&[CLOCK_GETTIME], &[&[0xeb, 0xfc]]).unwrap();
    assert_eq!(found.kind, WindowKind::Before);
}

#[test]
fn a_jump_into_the_window_refuses_it_wherever_it_comes_from() {
    let into = 0x40_0003;
    let refused = Err(Reason::Landing(into));
    let two: [&[u8]; 2] = [&[0x48, 0x89, 0xe6], &[0x31, 0xff]];
    // A short jump: to the second instruction.
    assert_eq!(window(&two, &[&[0xeb, 0xfa]]), refused);
    // A long one, behind an instruction that ends the function.
    assert_eq!(window(&two, &[RET, &[0xe9, 0xf6, 0xff, 0xff, 0xff]]), refused);
    // A symbol, a relocation, a landing pad.
    assert_eq!(
        window_at(0x40_0000, &two, &[RET], |file| file.labels.push(into)),
        refused
    );
    // Another function's start.
    assert_eq!(
        window_at(0x40_0000, &two, &[RET], |file| file.functions.push(into..into + 1)),
        refused
    );
    // A word of data.
    for word in [into.to_le_bytes().to_vec(), (into as u32).to_le_bytes().to_vec()] {
        let refusal = window_at(0x40_0000, &two, &[RET], |file| {
            let bytes: &'static [u8] = word.clone().leak();
            file.data.push(Part {
                address: 0x60_0000,
                bytes,
            });
        });
        assert_eq!(refusal, refused);
    }
    // A table of relative addresses that the code refers to: lea table(%rip), %rcx.
    let lea: &[u8] = &[0x48, 0x8d, 0x0d, 0, 0, 0x20, 0];
    let table = 0x40_0008 + 7 + 0x20_0000;
    let refusal = window_at(0x40_0000, &two, &[RET, lea, RET], |file| {
        file.is_fixed = false;
        file.data.push(Part {
            address: table,
            bytes: (into.wrapping_sub(table) as u32).to_le_bytes().to_vec().leak(),
        });
    });
    assert_eq!(refusal, refused);
}

#[test]
fn a_jump_from_code_that_is_far_away_and_not_decoded_refuses_the_window_too() {
    let two: [&[u8]; 2] = [&[0x48, 0x89, 0xe6], &[0x31, 0xff]];
    let (start, into) = (0x40_0000, 0x40_0003_u64);
    // Code of a function of its own, which ends with 32 bits that are relative to their end, or not.
    let refusal = |opcode: &[u8], is_relative: bool, into: u64, change: &dyn Fn(&mut File<'_>)| {
        let far: &[u8] = &[0x90; 4000];
        let end = start + 8 + far.len() as u64 + opcode.len() as u64 + 4;
        let word = if is_relative { into.wrapping_sub(end) } else { into } as u32;
        window_at(start, &two, &[RET, far, opcode, &word.to_le_bytes(), RET], |file| {
            file.is_fixed = !is_relative;
            file.functions = vec![start..start + 8, end - 11..end + 1];
            change(file);
        })
    };
    let refused = Err(Reason::Landing(into));
    let jumps: [&[u8]; 5] = [&[0xe8], &[0xe9], &[0x0f, 0x84], &[0xc7, 0xf8], &[0x4c, 0x8d, 0x3d]];
    for opcode in jumps {
        assert_eq!(refusal(opcode, true, into, &|_| {}), refused, "{opcode:02x?}");
        // To the call itself.
        assert!(refusal(opcode, true, start + 5, &|_| {}).is_ok(), "{opcode:02x?}");
    }
    // mov $into, %edi; mov $into, %r15; push $into; movl $into, 8(%rsp)
    let constants: [&[u8]; 4] = [&[0xbf], &[0x49, 0xc7, 0xc7], &[0x68], &[0xc7, 0x44, 0x24, 0x08]];
    for opcode in constants {
        assert_eq!(refusal(opcode, false, into, &|_| {}), refused, "{opcode:02x?}");
    }
    // lea table(%rip), %rcx.
    let table = 0x60_0000;
    let add_table = |file: &mut File<'_>| {
        file.data.push(Part {
            address: table,
            bytes: (into.wrapping_sub(table) as u32).to_le_bytes().to_vec().leak(),
        });
    };
    assert_eq!(refusal(&[0x48, 0x8d, 0x0d], true, table, &add_table), refused);
}

#[test]
fn code_that_no_function_reaches_is_left_alone() {
    let refusal = window_at(0x40_0000, &[RET, CLOCK_GETTIME], &[RET], |file| {
        file.functions = vec![0x40_0000..0x40_0001];
    });
    assert_eq!(refusal, Err(Reason::NotReached));
}

#[test]
fn two_decodings_of_the_same_code_are_a_reason_to_leave_it_alone() {
    // The constant contains another function.
    let refusal = window_at(0x40_0000, &[CLOCK_GETTIME], &[RET], |file| {
        file.functions.push(0x40_0002..0x40_0005);
    });
    assert!(
        matches!(refusal, Err(Reason::Landing(_) | Reason::Ambiguous(_))),
        "{refusal:?}"
    );
}

#[test]
fn a_jump_is_written_within_one_page() {
    let pad: &[u8] = &[0x90; 13];
    assert_eq!(
        window_at(AT, &[pad, CLOCK_GETTIME], &[RET], |_| {}),
        Err(Reason::CrossesPage)
    );
    assert!(window_at(AT, &[&pad[..11], CLOCK_GETTIME], &[RET], |_| {}).is_ok());
}

#[test]
fn code_that_the_loader_changes_is_left_alone() {
    for at in [0x40_0000 - 7, 0x40_0004] {
        let refusal = window_at(0x40_0000, &[CLOCK_GETTIME], &[RET], |file| file.relocated.push(at));
        assert_eq!(refusal, Err(Reason::Relocated(at)));
    }
    assert!(
        window_at(0x40_0000, &[CLOCK_GETTIME], &[RET], |file| file
            .relocated
            .push(0x40_0005))
        .is_ok()
    );
}

/// Regression test: a thunk would have made it a system call of the same number in the table of x86-64.
#[test]
fn i386s_calls_in_a_program_for_x86_64_are_left_alone() {
    let refusal = window_of(0x40_0000, &[CLOCK_GETTIME], &[0xcd, 0x80], &[RET], |_| {});
    assert_eq!(refusal, Err(Reason::OtherCall));
}

#[test]
fn a_load_of_a_vsyscall_is_replaced_in_its_constant() {
    // mov $0xffffffffff600000, %rax; call *%rax; ret
    let code: &[u8] = &[0x48, 0xc7, 0xc0, 0, 0, 0x60, 0xff, 0xff, 0xd0, 0xc3];
    let mut file = File {
        isa: fastpath_isa::Isa::X86_64,
        code: vec![Part {
            address: 0x40_0000,
            bytes: code,
        }],
        data: Vec::new(),
        is_fixed: true,
        functions: vec![0x40_0000..0x40_000a],
        labels: Vec::new(),
        objects: Vec::new(),
        data_sections: Vec::new(),
        relocated: Vec::new(),
        entry: 0x40_0000,
    };
    let found = find(
        &file,
        &Flow::around(&file, [0x40_0003]),
        0x40_0003,
        CallKind::Vsyscall,
        true,
    )
    .unwrap();
    assert_eq!(
        (found.kind, found.address, found.bytes),
        (WindowKind::Vsyscall, 0x40_0003, vec![0, 0, 0x60, 0xff])
    );
    file.is_fixed = false;
    let refused = find(
        &file,
        &Flow::around(&file, [0x40_0003]),
        0x40_0003,
        CallKind::Vsyscall,
        true,
    );
    assert_eq!(refused, Err(Reason::Movable));
}

#[test]
fn the_functions_for_any_call_are_found_in_this_machines_libc() {
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
    let libc = maps
        .split_whitespace()
        .find(|word| word.ends_with("/libc.so.6"))
        .unwrap();
    let sites = crate::rescue::analyse(&std::fs::read(libc).unwrap()).unwrap().sites;
    let any: Vec<_> = sites
        .iter()
        .filter(|site| site.calls == crate::rescue::Calls::Any)
        .collect();
    assert!(
        !any.is_empty() && any.iter().all(|site| site.window.is_ok()),
        "{sites:?}"
    );
}

/// int3, as padding behind a function.
const PADDING: &[u8] = &[0xcc; 40];
/// mov %rbx, %rdi
const MOVE: &[u8] = &[0x48, 0x89, 0xdf];
/// cmp $-4095, %rax; jae
const CHECK: &[u8] = &[0x48, 0x3d, 0x01, 0xf0, 0xff, 0xff, 0x73, 0x00];

/// Returns the window that keeps first bytes, of a `syscall` in a function that padding follows.
fn kept(before: &[&[u8]], behind: &[&[u8]], landing: Option<usize>) -> Result<Window, Reason> {
    let before = before.concat();
    let code = [&before, SYSCALL, &behind.concat()].concat();
    let end = 0x40_0000 + code.len() as u64;
    let code = [&code, PADDING].concat();
    let aligned = code.len() / 16 * 16;
    let file = File {
        isa: fastpath_isa::Isa::X86_64,
        code: vec![Part {
            address: 0x40_0000,
            bytes: &code[..aligned],
        }],
        data: Vec::new(),
        is_fixed: true,
        functions: vec![0x40_0000..end],
        labels: landing.map(|offset| 0x40_0000 + offset as u64).into_iter().collect(),
        objects: Vec::new(),
        data_sections: Vec::new(),
        relocated: Vec::new(),
        entry: 0x40_0000,
    };
    let site = 0x40_0000 + before.len() as u64;
    find(&file, &Flow::around(&file, [site]), site, CallKind::SystemCall, true)
}

#[test]
fn one_instruction_before_the_call_becomes_a_jump_behind_its_first_byte() {
    let found = kept(&[MOVE, CLOCK_GETTIME], &[RET], None).unwrap();
    assert_eq!((found.kind, found.address), (WindowKind::Before, 0x40_0000));
    let relays = found.jump.relays().expect("a short jump");
    // The code has 11 bytes.
    assert_eq!((relays[0].distance, relays[0].bytes), (11, [0xcc; 6]));
    // mov $228, %rax
    let long = kept(&[&[0x48, 0xc7, 0xc0, 0xe4, 0, 0, 0]], &[RET], None).unwrap();
    assert_eq!(long.jump, Jump::Inside);
    // Another path to the number and the call is not changed.
    assert!(kept(&[MOVE, CLOCK_GETTIME], &[RET], Some(3)).is_ok());
    assert_eq!(kept(&[MOVE, CLOCK_GETTIME], &[RET], Some(1)), Err(Reason::FirstByte));
    assert_eq!(kept(&[CLOCK_GETTIME], &[RET], None), Err(Reason::FirstByte));
}

#[test]
fn a_call_without_such_an_instruction_and_its_check_become_a_nop_and_a_jump() {
    let found = kept(&[CLOCK_GETTIME], &[CHECK, RET], None).unwrap();
    assert_eq!(
        (found.kind, found.address, found.bytes.len()),
        (WindowKind::Behind, 0x40_0005, 8)
    );
    assert!(matches!(found.jump, Jump::AtCall(_)));
    // With another number, or with the result of another call.
    for landing in [5, 7] {
        assert_eq!(
            kept(&[CLOCK_GETTIME], &[CHECK, RET], Some(landing)),
            Err(Reason::FirstByte)
        );
    }
}

#[test]
fn the_tables_of_programs_are_within_the_limit() {
    // As each address that is taken may be a table's, and these zeros are addresses in the code: ten words for each byte.
    const TABLES: usize = 64;
    const ZEROS: usize = 100 << 10;
    let lea = |number: usize| {
        let behind = (TABLES - 1 - number) * 7 + CLOCK_GETTIME.len() + SYSCALL.len() + RET.len();
        let displacement = (behind + 4 * number) as u32;
        [&[0x48, 0x8d, 0x3d][..], &displacement.to_le_bytes()].concat() // lea displacement(%rip), %rdi
    };
    let tables: Vec<u8> = (0..TABLES).flat_map(lea).collect();
    let found = window(&[&tables, CLOCK_GETTIME], &[RET, &[0; ZEROS]]);
    assert_eq!(found.map(|window| window.kind), Ok(WindowKind::Before));
}

#[test]
fn tables_that_overlap_keep_the_analysis_busy_for_a_moment_only() {
    const TABLES: i32 = 20_000;
    const LEA_BYTES: i32 = 7;
    let mut code = vec![0xb8, 228, 0, 0, 0, 0x0f, 0x05];
    for table in 0..TABLES {
        // lea, relative to its end.
        let distance = (TABLES - table - 1) * LEA_BYTES + 4 * table;
        code.extend([0x48, 0x8d, 0x05]);
        code.extend(distance.to_le_bytes());
    }
    // Each word is the distance of code.
    code.extend((-0x1000_i32).to_le_bytes().repeat(2 * TABLES as usize));
    let file = File {
        isa: fastpath_isa::Isa::X86_64,
        code: vec![Part {
            address: 0x40_0000,
            bytes: &code,
        }],
        data: Vec::new(),
        is_fixed: false,
        functions: vec![0x40_0000..0x40_0007],
        labels: Vec::new(),
        objects: Vec::new(),
        data_sections: Vec::new(),
        relocated: Vec::new(),
        entry: 0x40_0000,
    };
    let begun = std::time::Instant::now();
    assert!(!Flow::around(&file, [0x40_0005]).is_complete);
    assert!(
        begun.elapsed() < std::time::Duration::from_secs(1),
        "{:?}",
        begun.elapsed()
    );
}
