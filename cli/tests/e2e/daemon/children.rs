//! Trees of processes that have a page of the daemon, and a helper as attendant.

use std::path::{Path, PathBuf};
use std::process::Command;

use super::policy::{daemon, rule};
use super::{Place, page_of};
use crate::common::{Pid, Running, finish, install, needs_root, start, wait_until};

/// A shell of this test, which executes its script when `go` exists.
struct Tree {
    running: Running,
    go: PathBuf,
}

impl Tree {
    #[track_caller]
    fn start(shell: &Path, directory: &Path, script: &str) -> Tree {
        let go = directory.join("go");
        let mut command = Command::new(shell);
        let script = format!("echo ready; until test -e \"$0\"; do :; done; {script}");
        command.args(["-c", &script]).arg(&go);
        let running = start(command);
        wait_until("the shell", || running.out_so_far().contains("ready"));
        Tree { running, go }
    }

    fn pid(&self) -> Pid {
        self.running.pid()
    }

    #[track_caller]
    fn goes_on_and_prints(self, lines: &str) {
        std::fs::write(&self.go, "").expect("a file");
        let outcome = self.running.finish().expect_success();
        outcome.expect_output(format!("ready\n{lines}").trim_end());
    }
}

fn copy_of(program: &str, place: &Place) -> PathBuf {
    let copy = place.0.path().join(format!("copy-of-{program}"));
    let original = ["/bin", "/usr/bin"].map(|directory| Path::new(directory).join(program));
    let original = original.into_iter().find(|path| path.exists()).expect(program);
    install(&original, &copy, 0o755);
    copy
}

/// Prints the inode of the page of each of two programs, executed one after the other. If a publisher or an attendant
/// waits for a CPU for longer than a program waits for it, the program starts on the kernel's path, which is correct:
/// then the next one is tried.
const PAGES: &str = "for i in 1 2; do
        tries=0
        until awk '/memfd:fastpath-page/ { print $5; found = 1 } END { exit !found }' /proc/self/maps; do
            tries=$((tries + 1)); test $tries -lt 100 || break
        done
    done";

/// The rule is shown when the attach is complete; the page is mapped before.
#[track_caller]
fn wait_until_attached(place: &Place, tree: &Tree, rule: usize) {
    wait_until("it to be attached", || {
        let pages = place.status().pages;
        pages
            .iter()
            .any(|page| page.pid == tree.pid().0 && page.rule == Some(rule))
    });
}

/// Returns the helpers that inject the programs which the members of a daemon's trees execute.
fn attendants(place: &Place) -> Vec<Pid> {
    let socket = format!("FASTPATH_SOCKET={}\0", place.socket().display());
    let is_one =
        |pid: &Pid| pid.read("cmdline").starts_with("fastpath-publisher") && pid.read("environ").contains(&socket);
    Pid::all().into_iter().filter(is_one).collect()
}

#[test]
fn a_daemon_is_refused_as_a_publisher() {
    let place = Place::among_others();
    let daemon = place.daemon();
    let refused = finish(place.fastpath(&["attach", "--clocks", "all", &daemon.pid().0.to_string()])).expect_code(8);
    assert!(refused.err.contains("it is a publisher of fastpath"), "{refused:#?}");
}

#[test]
fn attach_with_children_takes_its_page_from_the_daemon() {
    needed!(needs_root());
    let place = Place::among_others();
    let _daemon = place.daemon();
    let tree = Tree::start(&copy_of("sh", &place), place.0.path(), PAGES);
    let pid = tree.pid().0.to_string();
    finish(place.fastpath(&["attach", "-q", "--children", "--clocks", "all", &pid]))
        .expect_success()
        .expect_output("");
    let page = page_of(tree.pid()).expect("a page");
    let pages: Vec<_> = place.status().pages.iter().map(|page| (page.pid, page.inode)).collect();
    assert_eq!(pages, [(tree.pid().0, page)]);
    let attendants = attendants(&place);
    assert_eq!(attendants.len(), 1);
    let threads = || attendants[0].read("status").lines().any(|line| line == "Threads:\t1");
    wait_until("an attendant of one thread", threads);
    assert!(
        !attendants[0].read("maps").contains("memfd:fastpath-page"),
        "it maps a page"
    );
    tree.goes_on_and_prints(&format!("{page}\n{page}"));
    wait_until("its attendant to end", || !attendants[0].exists());
    wait_until("the page to go away", || place.status().pages_in_all == 0);
}

/// In between no process maps the mailbox, and this program takes longer to be analysed than the helper and the daemon
/// wait between two checks.
#[test]
fn attendant_and_page_stay_while_the_only_process_executes_a_program() {
    use crate::common::{helper_program, processes::holds_within};
    let ((), large) = needed!(needs_root(), helper_program("raw-clock", "cc", &["-DLARGE"]));
    let place = Place::among_others();
    let _daemon = place.daemon();
    let shell = copy_of("sh", &place);
    // Without a CPU the attendant does not see the request, and the program runs untouched.
    wait_until("the attendant to see the exec", || {
        let tree = Tree::start(&shell, place.0.path(), &format!("exec {large}"));
        let pid = tree.pid();
        let options = ["attach", "-q", "--children", "--rescue", "--clocks", "all"];
        finish(place.fastpath(&[&options[..], &[&pid.0.to_string()]].concat())).expect_success();
        let page = page_of(pid).expect("a page");
        let attendants = attendants(&place);
        std::fs::write(&tree.go, "").expect("a file");
        wait_until("the exec", || pid.program().starts_with("raw-clock"));
        let is_met = || pid.status("TracerPid") != "0" || page_of(pid).is_some();
        if !holds_within(std::time::Duration::from_secs(2), is_met) {
            std::fs::remove_file(&tree.go).expect("removed");
            return false;
        }
        wait_until("the attendant to be done", || pid.status("TracerPid") == "0");
        assert_eq!(page_of(pid), Some(page), "the page of the program that was executed");
        assert!(attendants[0].exists(), "its attendant ended");
        let pages = place.status().pages;
        assert!(pages.iter().any(|shown| shown.inode == page), "its page ended");
        true
    });
}

#[test]
fn a_rule_with_children_attaches_a_tree_beyond_the_daemons_end() {
    needed!(needs_root());
    let place = Place::alone();
    let shell = copy_of("sh", &place);
    let policy = format!("{}children = true\n", rule(shell.to_str().expect("UTF-8"), "attach"));
    let (first, file) = daemon(&place, &policy);
    let tree = Tree::start(&shell, place.0.path(), PAGES);
    wait_until_attached(&place, &tree, 1);
    let page = page_of(tree.pid()).expect("a page");
    first.pid().signal(libc::SIGKILL);
    drop(first);
    let _next = start(place.command(&["--policy", file.to_str().expect("UTF-8")]));
    wait_until("the page to be found again", || {
        let answers = fastpath_protocol::Client::connect_to(&place.socket());
        let status = answers.and_then(|client| client.status()).ok();
        status.is_some_and(|status| status.pages.iter().any(|one| one.inode == page && one.refreshes > 0))
    });
    tree.goes_on_and_prints(&format!("{page}\n{page}"));
}

#[test]
fn a_forbidden_program_gets_no_page_in_an_attached_tree() {
    needed!(needs_root());
    let place = Place::among_others();
    let (shell, forbidden) = (copy_of("sh", &place), copy_of("cat", &place));
    let rules =
        [(&forbidden, "never"), (&shell, "attach")].map(|(path, action)| rule(path.to_str().expect("UTF-8"), action));
    let (_daemon, _) = daemon(&place, &format!("{}children = true\n", rules.concat()));
    let script = format!(
        "{PAGES}; {} /proc/self/maps | grep -c memfd:fastpath-page; exec true",
        forbidden.display()
    );
    let tree = Tree::start(&shell, place.0.path(), &script);
    wait_until_attached(&place, &tree, 2);
    let page = page_of(tree.pid()).expect("a page");
    tree.goes_on_and_prints(&format!("{page}\n{page}\n0"));
    // `attach` by name refuses it too, with and without its children.
    let mut sleeps = Command::new(&forbidden);
    sleeps.arg("/dev/zero");
    let named = start(sleeps);
    wait_until("its loop", || named.pid().cpu_time().as_millis() > 50);
    let pid = named.pid().0.to_string();
    for more in [&[][..], &["--children"]] {
        let refused = finish(place.fastpath(&[&["attach", "--clocks", "all"], more, &[&pid]].concat())).expect_code(18);
        assert!(refused.err.contains("says never"), "{refused:#?}");
        assert_eq!(page_of(named.pid()), None);
    }
}
