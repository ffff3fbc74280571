//! Filters that libseccomp makes (`make-filters`), and random ones, against an interpreter that knows every word, and
//! against the kernel.

use std::process::Command;
use std::sync::LazyLock;
use std::time::Duration;

use proptest::prelude::*;
use proptest::strategy::ValueTree;
use proptest::test_runner::TestRunner;

use super::*;

const X86_64: u32 = 0xc000_003e;
const I386: u32 = 0x4000_0003;
const CLOCK_GETTIME: u32 = 228;
const GETTIMEOFDAY: u32 = 96;
const TIME: u32 = 201;
const MOUNT: u32 = 165;

/// Returns the filter of this name that `make-filters` prints.
fn made(name: &str) -> Filter {
    static PRINTED: LazyLock<String> = LazyLock::new(|| {
        let program = concat!(env!("CARGO_MANIFEST_DIR"), "/src/target/seccomp_filter/make-filters");
        let done = Command::new(program).output().expect("python3");
        let complaint = String::from_utf8_lossy(&done.stderr);
        assert!(
            done.status.success(),
            "libseccomp2 (scripts/setup test installs it): {complaint}"
        );
        String::from_utf8(done.stdout).expect("text")
    });
    let instruction = |line: &str| {
        let numbers = line.split(' ').map(|number| number.parse().expect("a number"));
        let [code, jt, jf, k]: [u32; 4] = numbers.collect::<Vec<_>>().try_into().expect("four numbers");
        (code, jt as u8, jf as u8, k)
    };
    let lines = PRINTED
        .lines()
        .filter_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
    let instructions: Vec<_> = lines.map(instruction).collect();
    assert!(!instructions.is_empty(), "no filter {name}");
    filter(&instructions)
}

/// Returns a filter of these instructions: code, jt, jf, k.
fn filter(code: &[(u32, u8, u8, u32)]) -> Filter {
    let instruction = |(code, jt, jf, k): &(u32, u8, u8, u32)| Instruction {
        code: *code as u16,
        jt: *jt,
        jf: *jf,
        k: *k,
    };
    Filter(code.iter().map(instruction).collect())
}

fn verdicts(filter: &Filter) -> [FilterVerdict; 3] {
    [CLOCK_GETTIME, GETTIMEOFDAY, TIME].map(|number| filter.verdict(FilteredCall { arch: X86_64, number }))
}

fn errno(errno: i32) -> FilterVerdict {
    FilterVerdict::Not(Action(libc::SECCOMP_RET_ERRNO | errno as u32))
}

const LOAD: u32 = libc::BPF_LD | libc::BPF_W | libc::BPF_ABS;
const RETURN: u32 = libc::BPF_RET | libc::BPF_K;
const EQUAL: u32 = libc::BPF_JMP | libc::BPF_JEQ;
const FIRST_ARGUMENT: u32 = 16;

#[test]
fn the_filters_of_containers_and_of_systemd_allow_clock_calls() {
    let filters = [
        made("container"),
        made("container-tree"),
        made("systemd-deny"),
        made("systemd-write-execute"),
        made("systemd-native"),
    ];
    for filter in &filters {
        assert_eq!(verdicts(filter), [FilterVerdict::Allowed; 3], "{filter:?}");
        assert!(!filter.reads_the_address());
    }
    let mount = FilteredCall {
        arch: X86_64,
        number: MOUNT,
    };
    let answers = filters.each_ref().map(|filter| filter.verdict(mount));
    let (allowed, refused) = (FilterVerdict::Allowed, errno(libc::EPERM));
    assert_eq!(answers, [refused, refused, refused, allowed, allowed]);
    let foreign = FilteredCall {
        arch: I386,
        number: MOUNT,
    };
    let killed = FilterVerdict::Not(Action(libc::SECCOMP_RET_KILL_PROCESS));
    assert_eq!(made("systemd-native").verdict(foreign), killed);
}

#[test]
fn a_filter_that_answers_a_clock_call_itself_is_recognised() {
    let logged = FilterVerdict::Not(Action(libc::SECCOMP_RET_LOG));
    let allowed = FilterVerdict::Allowed;
    assert_eq!(verdicts(&made("systemd-log")), [logged, allowed, allowed]);
    let refused = errno(libc::ENOSYS);
    assert_eq!(verdicts(&made("clock-errno")), [refused, allowed, refused]);
    // Only for one clock.
    assert_eq!(
        verdicts(&made("clock-argument")),
        [errno(libc::EPERM), allowed, allowed]
    );
}

#[test]
fn an_answer_that_is_the_same_on_both_branches_does_not_depend_on_the_argument() {
    let allow_all = filter(&[(RETURN, 0, 0, libc::SECCOMP_RET_ALLOW)]);
    assert_eq!(verdicts(&allow_all), [FilterVerdict::Allowed; 3]);
    // The data of SECCOMP_RET_ALLOW means nothing.
    let both = filter(&[
        (LOAD, 0, 0, FIRST_ARGUMENT),
        (EQUAL, 0, 1, 4),
        (RETURN, 0, 0, libc::SECCOMP_RET_ALLOW | 7),
        (RETURN, 0, 0, libc::SECCOMP_RET_ALLOW),
    ]);
    assert_eq!(verdicts(&both), [FilterVerdict::Allowed; 3]);
    let computed = filter(&[(LOAD, 0, 0, FIRST_ARGUMENT), (libc::BPF_RET | BPF_A, 0, 0, 0)]);
    assert_eq!(verdicts(&computed), [FilterVerdict::Unknown; 3]);
}

#[test]
fn a_filter_that_reads_the_address_of_the_instruction_is_recognised() {
    for address in ADDRESS_AT {
        assert!(filter(&[(LOAD, 0, 0, address), (RETURN, 0, 0, 0)]).reads_the_address());
    }
}

#[test]
fn a_filter_with_too_many_paths_or_no_end_is_unknown() {
    // Each turn doubles the paths: it shifts A by one, and adds one or nothing.
    let mut code = vec![(libc::BPF_LD | libc::BPF_IMM, 0, 0, 0), (libc::BPF_ST, 0, 0, 0)];
    for _ in 0..30 {
        code.extend([
            (LOAD, 0, 0, FIRST_ARGUMENT),
            (EQUAL, 0, 3, 1),
            (libc::BPF_LD | libc::BPF_MEM, 0, 0, 0),
            (libc::BPF_ALU | libc::BPF_LSH, 0, 0, 1),
            (libc::BPF_JMP | libc::BPF_JA, 0, 0, 2),
            (libc::BPF_LD | libc::BPF_MEM, 0, 0, 0),
            (libc::BPF_ALU | libc::BPF_ADD, 0, 0, 1),
            (libc::BPF_ST, 0, 0, 0),
        ]);
    }
    code.push((RETURN, 0, 0, libc::SECCOMP_RET_ALLOW));
    assert_eq!(verdicts(&filter(&code)), [FilterVerdict::Unknown; 3]);
    assert_eq!(verdicts(&filter(&[])), [FilterVerdict::Unknown; 3]);
    assert_eq!(verdicts(&filter(&[(LOAD, 0, 0, 0)])), [FilterVerdict::Unknown; 3]);
    let beyond = filter(&[(libc::BPF_JMP | libc::BPF_JA, 0, 0, u32::MAX), (RETURN, 0, 0, 0)]);
    assert_eq!(verdicts(&beyond), [FilterVerdict::Unknown; 3]);
}

#[test]
fn paths_that_meet_again_are_followed_once() {
    // Both branches of each comparison lead to the next.
    let mut code = vec![(EQUAL, 0, 0, 7); MOST_INSTRUCTIONS];
    code[0] = (LOAD, 0, 0, FIRST_ARGUMENT);
    code[MOST_INSTRUCTIONS - 1] = (RETURN, 0, 0, libc::SECCOMP_RET_ALLOW);
    assert_eq!(verdicts(&filter(&code)), [FilterVerdict::Allowed; 3]);
}

#[test]
fn any_bytes_are_judged_in_bounded_time() {
    let bytes_of = |filter: &Filter| -> Vec<u8> {
        let bytes = |it: &Instruction| [&it.code.to_le_bytes()[..], &[it.jt, it.jf], &it.k.to_le_bytes()].concat();
        filter.0.iter().flat_map(bytes).collect()
    };
    let corpus = [made("container-tree"), made("systemd-write-execute")];
    let corpus: Vec<Vec<u8>> = corpus.iter().map(bytes_of).collect();
    crate::mutations::feed(&corpus, Duration::from_secs(2), 2, |bytes| {
        let (instructions, _) = bytes.as_chunks::<8>();
        let instruction = |[c0, c1, jt, jf, k @ ..]: &[u8; 8]| Instruction {
            code: u16::from_le_bytes([*c0, *c1]),
            jt: *jt,
            jf: *jf,
            k: u32::from_le_bytes(*k),
        };
        if !instructions.is_empty() {
            verdicts(&Filter(instructions.iter().map(instruction).collect()));
        }
    });
}

/// The words of struct seccomp_data.
type Data = [u32; 16];

/// Returns a filter's answer to a call of which every word is known, as the kernel computes it.
fn concrete(filter: &Filter, data: &Data) -> u32 {
    let (mut a, mut x, mut scratch, mut at) = (0u32, 0u32, [0u32; WORDS], 0);
    loop {
        let Instruction { code, jt, jf, k } = filter.0[at];
        let operand = if code & 8 == 0 { k } else { x };
        let jump = |condition| usize::from(if condition { jt } else { jf });
        at += 1;
        // The codes of include/uapi/linux/bpf_common.h, in full.
        match code {
            0x00 => a = k,
            0x01 => x = k,
            0x20 => a = data[k as usize / 4],
            0x60 => a = scratch[k as usize],
            0x61 => x = scratch[k as usize],
            0x80 => a = 64,
            0x81 => x = 64,
            0x02 => scratch[k as usize] = a,
            0x03 => scratch[k as usize] = x,
            0x04 | 0x0c => a = a.wrapping_add(operand),
            0x14 | 0x1c => a = a.wrapping_sub(operand),
            0x24 | 0x2c => a = a.wrapping_mul(operand),
            0x34 | 0x3c if operand == 0 => return 0,
            0x34 | 0x3c => a /= operand,
            0x44 | 0x4c => a |= operand,
            0x54 | 0x5c => a &= operand,
            0x64 | 0x6c => a = a.wrapping_shl(operand),
            0x74 | 0x7c => a = a.wrapping_shr(operand),
            0x84 => a = a.wrapping_neg(),
            0xa4 | 0xac => a ^= operand,
            0x05 => at += k as usize,
            0x15 | 0x1d => at += jump(a == operand),
            0x25 | 0x2d => at += jump(a > operand),
            0x35 | 0x3d => at += jump(a >= operand),
            0x45 | 0x4d => at += jump(a & operand != 0),
            0x06 => return k,
            0x16 => return a,
            0x07 => x = a,
            0x87 => a = x,
            _ => panic!("{code:#x} is no instruction of a filter"),
        }
    }
}

/// A number that no call has: an allowed call of it returns ENOSYS.
const NO_CALL: u32 = 4000;
const CALL: FilteredCall = FilteredCall {
    arch: X86_64,
    number: NO_CALL,
};
/// Values that instructions and data often have in common.
const VALUES: [u32; 8] = [0, 1, 2, 5, NO_CALL, X86_64, 0x8000_0000, u32::MAX];
const ANSWERS: [u32; 4] = [
    libc::SECCOMP_RET_ALLOW,
    libc::SECCOMP_RET_ALLOW,
    libc::SECCOMP_RET_ERRNO | 1,
    libc::SECCOMP_RET_ERRNO | 2,
];

/// One instruction, with the rest of the filter `left` long. Scratch words 0 to 2 have been stored. `of` picks the kind.
fn instruction(of: u8, value: u32, [jt, jf]: [u8; 2], left: usize) -> Instruction {
    let (k, small) = (VALUES[value as usize % VALUES.len()], value % 3);
    let near = |jump: u8| (usize::from(jump) % left.min(4)) as u8;
    let (code, k) = match of % 24 {
        0 | 1 => (0x20, 4 * (value % 2)),
        2..4 => (0x20, 16 + 4 * (value % 12)),
        4 => (0x00, k),
        5 => (0x01, k),
        6 => (0x60, small),
        7 => (0x61, small),
        8 => (0x02, small),
        9 => (0x03, small),
        10 => ([0x80, 0x81, 0x84][small as usize], 0),
        11 => ([0x07, 0x87][value as usize % 2], 0),
        12 => ([0x64, 0x74][value as usize % 2], value % 32),
        13 => ([0x34, 0x3c, 0x3c][small as usize], k.max(1)),
        14 => ([0x04, 0x0c, 0x14, 0x1c][value as usize % 4], k),
        15 => ([0x24, 0x2c, 0x44, 0x4c][value as usize % 4], k),
        16 => ([0x54, 0x5c, 0xa4, 0xac][value as usize % 4], k),
        17 => (0x05, near(jt).into()),
        18..22 => {
            let code = [0x15, 0x15, 0x25, 0x35, 0x45, 0x1d, 0x2d, 0x3d, 0x4d];
            (code[usize::from(of / 24) % code.len()], k)
        }
        _ => (0x06, ANSWERS[value as usize % ANSWERS.len()]),
    };
    let is_branch = code & 7 == 5 && code != 5;
    let target = |jump| if is_branch { near(jump) } else { 0 };
    Instruction {
        code,
        jt: target(jt),
        jf: target(jf),
        k,
    }
}

/// Random filters that the kernel accepts.
fn filters() -> impl Strategy<Value = Filter> {
    let seed = (any::<u8>(), any::<u32>(), any::<[u8; 2]>());
    (proptest::collection::vec(seed, 1..30), 0..ANSWERS.len()).prop_map(|(seeds, answer)| {
        let stores = (0..3).map(|k| Instruction {
            code: 0x02,
            k,
            ..Instruction::default()
        });
        let count = seeds.len();
        let seeds = seeds.into_iter().enumerate();
        let body = seeds.map(|(at, (of, value, jumps))| instruction(of, value, jumps, count - at));
        let end = Instruction {
            code: 0x06,
            k: ANSWERS[answer],
            ..Instruction::default()
        };
        Filter(stores.chain(body).chain([end]).collect())
    })
}

/// Random calls of [`CALL`].
fn calls() -> impl Strategy<Value = Vec<Data>> {
    let word = prop_oneof![proptest::sample::select(&VALUES[..]), any::<u32>()];
    let data = proptest::collection::vec(word, 16).prop_map(|words| {
        let mut data: Data = words.try_into().unwrap();
        (data[0], data[1]) = (CALL.number, CALL.arch);
        data
    });
    proptest::collection::vec(data, 16)
}

fn reads_only_known_words(filter: &Filter) -> bool {
    filter.0.iter().all(|one| one.code != 0x20 || one.k < 8)
}

/// Checks a verdict against the answers to some calls.
fn agrees(filter: &Filter, calls: &[Data]) {
    let verdict = filter.verdict(CALL);
    for data in calls {
        let answer = Action(concrete(filter, data));
        match verdict {
            FilterVerdict::Allowed => assert!(answer.is_allow(), "{answer:?} to {data:?}"),
            FilterVerdict::Not(other) if reads_only_known_words(filter) => assert_eq!(answer, other),
            // Instructions with known operands have a known result.
            FilterVerdict::Unknown => assert!(!reads_only_known_words(filter)),
            FilterVerdict::Not(_) => {}
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(5000))]

    #[test]
    fn a_verdict_holds_for_every_call(filter in filters(), calls in calls()) {
        agrees(&filter, &calls);
    }
}

#[test]
fn a_verdict_holds_for_every_call_of_real_filters() {
    let filters = [
        made("container"),
        made("container-tree"),
        made("systemd-write-execute"),
        made("clock-argument"),
    ];
    let mut runner = TestRunner::deterministic();
    for filter in &filters {
        for number in 0..450 {
            let call = FilteredCall { arch: X86_64, number };
            let verdict = filter.verdict(call);
            for mut data in calls().new_tree(&mut runner).unwrap().current() {
                data[0] = number;
                let answer = Action(concrete(filter, &data));
                assert!(verdict != FilterVerdict::Allowed || answer.is_allow(), "{number}");
            }
        }
    }
}

/// The kernel as the judge of the interpreter above: it answers the calls of a child that installs the filter.
#[cfg(target_arch = "x86_64")]
mod kernel {
    use std::io::Read;
    use std::os::fd::AsRawFd;

    use super::*;

    /// Most calls of one child.
    const MOST: usize = 16;
    /// Errno of a child's call that was not made.
    const NONE: i32 = -1;

    /// Returns the filter behind a test that allows all calls except [`CALL`]'s.
    fn only_for_the_call(filter: &Filter) -> Vec<Instruction> {
        let Filter(mut code) = super::filter(&[
            (LOAD, 0, 0, NUMBER_AT),
            (EQUAL, 1, 0, CALL.number),
            (RETURN, 0, 0, libc::SECCOMP_RET_ALLOW),
            (libc::BPF_LD | libc::BPF_IMM, 0, 0, 0),
        ]);
        code.extend(&filter.0);
        code
    }

    /// Makes the calls in a child under the filter, and returns their errnos.
    fn errnos(filter: &Filter, calls: &[Data]) -> [i32; MOST] {
        let code = only_for_the_call(filter);
        let program = libc::sock_fprog {
            len: code.len() as u16,
            filter: code.as_ptr().cast_mut().cast(),
        };
        let (mut results, given) = std::io::pipe().expect("a pipe");
        let mut errnos = [NONE; MOST];
        let wide = |data: &Data, at: usize| u64::from(data[at]) | u64::from(data[at + 1]) << 32;
        // SAFETY: the child makes system calls only, and writes integers of its own to a pipe. `program` is a valid
        // filter, and struct sock_filter has the layout of `Instruction`.
        unsafe {
            let child = libc::fork();
            if child == 0 {
                if libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0
                    || libc::prctl(libc::PR_SET_SECCOMP, libc::SECCOMP_MODE_FILTER, &raw const program) != 0
                {
                    libc::_exit(1);
                }
                for (at, data) in calls.iter().take(MOST).enumerate() {
                    let [a, b, c, d, e, f] = [4, 6, 8, 10, 12, 14].map(|at| wide(data, at));
                    libc::syscall(CALL.number.into(), a, b, c, d, e, f);
                    errnos[at] = *libc::__errno_location();
                }
                libc::write(given.as_raw_fd(), errnos.as_ptr().cast(), size_of_val(&errnos));
                libc::_exit(0);
            }
            let mut status = 0;
            assert!(child > 0 && libc::waitpid(child, &mut status, 0) == child);
            assert_eq!(status, 0, "{filter:?}");
        }
        let mut bytes = [0; size_of::<[i32; MOST]>()];
        results.read_exact(&mut bytes).expect("the results");
        std::array::from_fn(|at| i32::from_ne_bytes(bytes[4 * at..][..4].try_into().unwrap()))
    }

    #[test]
    fn the_kernel_answers_as_the_interpreter_that_judges_the_verdicts() {
        let mut runner = TestRunner::default();
        let mut verdicts = [0; 2];
        for _ in 0..300 {
            let filter = filters().new_tree(&mut runner).unwrap().current();
            let mut data = calls().new_tree(&mut runner).unwrap().current();
            // A division by zero kills.
            data.retain(|data| concrete(&filter, data) != 0);
            let expected = |data| match concrete(&filter, data) {
                answer if Action(answer).is_allow() => libc::ENOSYS,
                answer => (answer & libc::SECCOMP_RET_DATA) as i32,
            };
            let expected: Vec<i32> = data.iter().map(expected).collect();
            assert_eq!(errnos(&filter, &data)[..data.len()], expected, "{filter:?}");
            agrees(&filter, &data);
            verdicts[usize::from(filter.verdict(CALL) == FilterVerdict::Allowed)] += 1;
        }
        assert!(verdicts.iter().all(|count| *count > 20), "{verdicts:?}");
    }
}
