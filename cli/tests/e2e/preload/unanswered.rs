//! A daemon that answers nonsense, or nothing: the program nevertheless starts in time, and unchanged.

use std::os::fd::AsRawFd;
use std::process::Command;

use fastpath_protocol::{Code, RequestRefusal, Section, Source};

use super::server::{Plan, Reply, listen_at, memfd, unsealed};
use super::{Server, inherited, preloaded_at, reason, verbose};
use crate::common::{finish, program, start};

/// Checks that the program is not served, reports why, and has the same surroundings as without the library.
#[track_caller]
fn leaves_a_program_as_it_is(behaviour: impl Fn(Plan) -> Option<Reply> + Send + Sync + 'static) -> String {
    let server = Server::that(behaviour);
    let state = program("state").expect("the program that says what it inherits");
    let outcome = finish(verbose(&server, &[&state])).expect_success();
    let bare = finish(Command::new(&state)).expect_success();
    assert_eq!(inherited(&outcome), inherited(&bare));
    let shows = finish(verbose(&server, &["cat", "/proc/self/maps"])).expect_success();
    let no_trace =
        |line: &str| !line.contains("fastpath-page") && !line.contains(" rwx") && !line.contains("fastpath-region");
    assert!(shows.out.lines().all(no_trace), "{}", shows.out);
    assert_eq!(server.requests(), 2, "each sent one request");
    reason(verbose(&server, &["true"]))
}

/// A test's change of a plan, or of the reply.
type Change = Box<dyn Fn(&mut Plan) + Send + Sync>;
type Spoil = fn(&mut Reply);

/// The correct answer with a changed plan.
fn with(change: impl Fn(&mut Plan) + Send + Sync + 'static) -> impl Fn(Plan) -> Option<Reply> + Send + Sync {
    move |mut plan| {
        change(&mut plan);
        Some(plan.reply())
    }
}

/// The correct answer with a changed reply.
fn spoilt(change: impl Fn(&mut Reply) + Send + Sync + 'static) -> impl Fn(Plan) -> Option<Reply> + Send + Sync {
    move |plan| {
        let mut reply = plan.reply();
        change(&mut reply);
        Some(reply)
    }
}

#[test]
fn the_wait_for_a_silent_daemon_has_a_timeout() {
    let server = Server::that(|_| None);
    let state = program("state").expect("the program that says what it inherits");
    for timeout in ["50", "1", "", "never", "-1"] {
        let mut run = verbose(&server, &[&state]);
        run.env("FASTPATH_PRELOAD_TIMEOUT_MS", timeout);
        let outcome = finish(run).expect_success();
        assert!(outcome.err.contains("does not answer (errno 11)"), "{outcome:#?}");
        let bare = finish(Command::new(&state)).expect_success();
        assert_eq!(inherited(&outcome), inherited(&bare));
    }
    assert_eq!(server.requests(), 5);
}

#[test]
fn the_wait_for_a_daemon_that_accepts_no_connection_has_a_timeout() {
    let directory = tempfile::tempdir().expect("a directory");
    let socket = directory.path().join("socket");
    let _listener = listen_at(&socket);
    // More connections than its queue holds.
    let asking = (0..40).map(|_| {
        let mut run = preloaded_at(&socket, &["true"]);
        run.env("FASTPATH_PRELOAD_TIMEOUT_MS", "50");
        start(run)
    });
    for program in asking.collect::<Vec<_>>() {
        program.finish().expect_success().expect_output("");
    }
}

#[test]
fn a_dead_daemons_socket_does_not_disturb_a_program() {
    let directory = tempfile::tempdir().expect("a directory");
    let socket = directory.path().join("socket");
    drop(listen_at(&socket));
    finish(preloaded_at(&socket, &["true"]))
        .expect_success()
        .expect_output("");
    let mut asked = preloaded_at(&socket, &["true"]);
    asked.env("FASTPATH_PRELOAD_VERBOSE", "1");
    assert_eq!(reason(asked), "no daemon answers at its socket (errno 111)");
}

#[test]
fn a_file_that_is_not_a_socket_gets_no_request() {
    for path in ["/dev/null", "/proc/self/exe", "/", &"/x".repeat(60)] {
        finish(preloaded_at(path.as_ref(), &["true"]))
            .expect_success()
            .expect_output("");
    }
}

#[test]
fn garbage_is_not_accepted_as_an_answer() {
    let answers: [(&str, Spoil); 5] = [
        ("is not from fastpathd", |reply| {
            reply.bytes = b"HTTP/1.1 400 Bad Request\r\n\r\n".to_vec()
        }),
        ("is not from fastpathd", |reply| {
            reply.bytes.truncate(reply.bytes.len() / 2)
        }),
        ("is not from fastpathd", |reply| reply.bytes.push(0)),
        ("is not from fastpathd", |reply| reply.bytes[0] ^= 1),
        ("has another version", |reply| reply.bytes[8] = 99),
    ];
    for (expected, change) in answers {
        let why = leaves_a_program_as_it_is(spoilt(change));
        assert!(why.contains(expected), "{why}");
    }
}

#[test]
fn the_librarys_report_contains_the_daemons_reason() {
    let why = leaves_a_program_as_it_is(with(|plan| {
        let refusal = RequestRefusal::new(Code::Nothing, "every clock is fast here");
        plan.answer = fastpath_protocol::Answer::refusing(plan.answer.operation, &refusal);
    }));
    assert_eq!(why, "fastpathd declines: every clock is fast here");
    // A sentence without its final 0.
    let why = leaves_a_program_as_it_is(with(|plan| {
        plan.answer.error = Code::Internal as u32;
        plan.answer.sentence = [b'x'; fastpath_protocol::SENTENCE];
    }));
    assert_eq!(why.matches('x').count(), fastpath_protocol::SENTENCE - 1);
}

#[test]
fn too_few_or_too_many_descriptors_are_closed() {
    let few = leaves_a_program_as_it_is(spoilt(|reply| {
        reply.descriptors.pop();
    }));
    assert!(few.contains("descriptors did not arrive"), "{few}");
    let none = leaves_a_program_as_it_is(spoilt(|reply| reply.descriptors.clear()));
    assert!(none.contains("descriptors did not arrive"), "{none}");
    let many = leaves_a_program_as_it_is(spoilt(|reply| {
        reply.descriptors.extend((0..60).map(|_| memfd(b"more")));
    }));
    assert!(many.contains("descriptors did not arrive"), "{many}");
}

#[test]
fn an_invalid_plan_is_not_carried_out() {
    fn section(change: impl Fn(&mut [Section]) + Send + Sync + 'static) -> impl Fn(&mut Plan) + Send + Sync {
        move |plan| change(&mut plan.answer.section)
    }
    let write = (libc::PROT_READ | libc::PROT_WRITE | libc::PROT_EXEC) as u32;
    let plans: Vec<Change> = vec![
        // Changes nothing: without this case, the others would prove nothing.
        Box::new(|_| ()),
        Box::new(section(|s| s[0].offset = 1 << 20)),
        Box::new(section(|s| s[0].offset = 17)),
        Box::new(section(|s| s[1].size = !4095)),
        Box::new(section(|s| s[1].size = 0)),
        Box::new(section(|s| s[1].file_offset = 1 << 30)),
        Box::new(section(|s| s[1].file_size = s[1].size + 1)),
        Box::new(section(move |s| s[1].protection = write)),
        Box::new(section(|s| s[2].protection = 8)),
        Box::new(section(|s| s[3].source = 77)),
        Box::new(section(|s| s[0].size = 8192)),
        Box::new(|plan| plan.answer.region_size = 0),
        Box::new(|plan| plan.answer.region_size = 1 << 20),
        Box::new(|plan| plan.page = memfd(b"short")),
        Box::new(|plan| plan.mailbox = memfd(b"")),
        // Their maker could shorten them later: SIGBUS.
        Box::new(|plan| plan.page = unsealed(&[0; 4096])),
        Box::new(|plan| plan.mailbox = unsealed(&[0; 4096])),
        Box::new(|plan| plan.patches.clear()),
        Box::new(|plan| plan.patches = vec![plan.patches[0]; 1000]),
        Box::new(|plan| plan.patches[0].size = fastpath_protocol::PATCH_BYTES as u32 + 1),
        Box::new(|plan| plan.patches[0].size = 0),
        Box::new(|plan| plan.patches[0].address = 4096),
        Box::new(|plan| plan.patches[0].address = u64::MAX - 2),
        Box::new(|plan| plan.patches.last_mut().expect("a patch").original[0] ^= 1),
    ];
    for (i, change) in plans.into_iter().enumerate() {
        if i == 0 {
            let server = Server::that(with(change));
            assert_eq!(finish(verbose(&server, &["true"])).expect_success().err, super::SERVED);
            continue;
        }
        let why = leaves_a_program_as_it_is(with(change));
        assert!(!why.is_empty(), "{i}");
    }
}

#[test]
fn a_plan_that_is_shorter_than_it_says_causes_no_fault() {
    let cut = |keep: usize| {
        move |reply: &mut Reply| {
            let plan = format!("/proc/self/fd/{}", reply.descriptors[2].as_raw_fd());
            let bytes = std::fs::read(plan).expect("the plan");
            reply.descriptors[2] = memfd(&bytes[..keep]);
        }
    };
    for keep in [0, 1, 4096, 20000] {
        let why = leaves_a_program_as_it_is(spoilt(cut(keep)));
        assert!(why.contains("shorter than it says"), "{keep}: {why}");
    }
}

#[test]
fn a_section_of_an_unknown_kind_is_refused() {
    let why = leaves_a_program_as_it_is(with(|plan| {
        let mailbox = plan
            .answer
            .section
            .iter_mut()
            .find(|s| s.source == Source::Mailbox as u32);
        mailbox.expect("a mailbox").source = 4;
    }));
    assert!(why.contains("of a kind that is unknown"), "{why}");
}
