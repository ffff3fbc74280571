//! A daemon that answers nonsense, or nothing: the program starts all the same, in time, and is what it was.

use std::os::fd::{AsRawFd, OwnedFd};
use std::process::Command;

use fastpath_protocol::{Code, Refusal, Section, Source};

use super::server::{Plan, Reply, listen_at, memfd};
use super::{Server, inherited, preloaded_at, reason, verbose};
use crate::common::{finish, program, start};

/// The program is not served, says why if asked, and finds everything as always.
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
    assert_eq!(server.requests(), 2, "each asked once");
    reason(verbose(&server, &["true"]))
}

/// What a test changes in a plan, and in what travels.
type Change = Box<dyn Fn(&mut Plan) + Send + Sync>;
type Spoil = fn(&mut Reply);

/// The right answer with something changed in it.
fn with(change: impl Fn(&mut Plan) + Send + Sync + 'static) -> impl Fn(Plan) -> Option<Reply> + Send + Sync {
    move |mut plan| {
        change(&mut plan);
        Some(plan.reply())
    }
}

/// The right answer with something changed in what travels.
fn spoilt(change: impl Fn(&mut Reply) + Send + Sync + 'static) -> impl Fn(Plan) -> Option<Reply> + Send + Sync {
    move |plan| {
        let mut reply = plan.reply();
        change(&mut reply);
        Some(reply)
    }
}

#[test]
fn a_daemon_that_is_silent_is_waited_for_but_not_long() {
    let server = Server::that(|_| None);
    let state = program("state").expect("the program that says what it inherits");
    for patience in ["50", "1", "", "never", "-1"] {
        let mut run = verbose(&server, &[&state]);
        run.env("FASTPATH_PRELOAD_PATIENCE_MS", patience);
        let outcome = finish(run).expect_success();
        assert!(outcome.err.contains("does not answer (errno 11)"), "{outcome:#?}");
        let bare = finish(Command::new(&state)).expect_success();
        assert_eq!(inherited(&outcome), inherited(&bare));
    }
    assert_eq!(server.requests(), 5);
}

#[test]
fn a_daemon_that_takes_no_connections_is_waited_for_but_not_long() {
    let directory = tempfile::tempdir().expect("a directory");
    let socket = directory.path().join("socket");
    let _listener = listen_at(&socket);
    // More than its queue holds.
    let asking = (0..40).map(|_| {
        let mut run = preloaded_at(&socket, &["true"]);
        run.env("FASTPATH_PRELOAD_PATIENCE_MS", "50");
        start(run)
    });
    for program in asking.collect::<Vec<_>>() {
        program.finish().expect_success().expect_output("");
    }
}

#[test]
fn a_daemon_that_has_gone_leaves_a_socket_that_nobody_minds() {
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
fn another_kind_of_file_is_not_spoken_to() {
    for path in ["/dev/null", "/proc/self/exe", "/", &"/x".repeat(60)] {
        finish(preloaded_at(path.as_ref(), &["true"]))
            .expect_success()
            .expect_output("");
    }
}

#[test]
fn garbage_is_no_answer() {
    let answers: [(&str, Spoil); 5] = [
        ("is not fastpathd", |reply| {
            reply.bytes = b"HTTP/1.1 400 Bad Request\r\n\r\n".to_vec()
        }),
        ("is not fastpathd", |reply| reply.bytes.truncate(reply.bytes.len() / 2)),
        ("is not fastpathd", |reply| reply.bytes.push(0)),
        ("is not fastpathd", |reply| reply.bytes[0] ^= 1),
        ("of another version", |reply| reply.bytes[8] = 99),
    ];
    for (expected, change) in answers {
        let why = leaves_a_program_as_it_is(spoilt(change));
        assert!(why.contains(expected), "{why}");
    }
}

#[test]
fn what_the_daemon_says_is_told_to_who_asks() {
    let why = leaves_a_program_as_it_is(with(|plan| {
        let refusal = Refusal::new(Code::Nothing, "every clock is fast here");
        plan.answer = fastpath_protocol::Answer::refusing(plan.answer.operation, &refusal);
    }));
    assert_eq!(why, "fastpathd declines: every clock is fast here");
    // A sentence without an end.
    let why = leaves_a_program_as_it_is(with(|plan| {
        plan.answer.error = Code::Internal as u32;
        plan.answer.sentence = [b'x'; fastpath_protocol::SENTENCE];
    }));
    assert_eq!(why.matches('x').count(), fastpath_protocol::SENTENCE - 1);
}

#[test]
fn descriptors_that_are_too_few_or_too_many_stay_nowhere() {
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
fn a_plan_that_cannot_be_is_not_carried_out() {
    fn section(change: impl Fn(&mut [Section]) + Send + Sync + 'static) -> impl Fn(&mut Plan) + Send + Sync {
        move |plan| change(&mut plan.answer.section)
    }
    let write = (libc::PROT_READ | libc::PROT_WRITE | libc::PROT_EXEC) as u32;
    let plans: Vec<Change> = vec![
        // Changes nothing: without this one, the others would not show anything.
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
        Box::new(|plan| plan.patches.clear()),
        Box::new(|plan| plan.patches = vec![plan.patches[0]; 1000]),
        Box::new(|plan| plan.patches[0].size = 25),
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
fn a_plan_that_is_shorter_than_it_says_makes_no_fault() {
    let cut = |keep: usize| {
        move |reply: &mut Reply| {
            let plan: &OwnedFd = &reply.descriptors[2];
            // SAFETY: ftruncate takes integers.
            assert_eq!(unsafe { libc::ftruncate(plan.as_raw_fd(), keep as libc::off_t) }, 0);
        }
    };
    for keep in [0, 1, 4096, 20000] {
        let why = leaves_a_program_as_it_is(spoilt(cut(keep)));
        assert!(why.contains("shorter than it says"), "{keep}: {why}");
    }
}

#[test]
fn sections_are_known_by_their_kind() {
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
