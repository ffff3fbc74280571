//! Serves clients: one poll(2) over all of them, and nothing that waits for any.
//!
//! A packet is a request, and its answer is sent at once; if there is no room for it, the client does not read, and is gone. Who says
//! nothing for [`PATIENCE`] is gone, too. So no client costs more than a descriptor for a while.

use std::collections::HashMap;
use std::io;
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd};
use std::path::PathBuf;
use std::time::{Duration, Instant};

use fastpath_measure::{Assume, measure_for_auto};
use fastpath_page::ClockSet;
use fastpath_protocol::{Code, Refusal, Request, Status, packet};
use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::signal::{SigSet, Signal};
use nix::sys::signalfd::{SfdFlags, SignalFd};
use nix::sys::socket::{Shutdown, SockFlag, accept4, setsockopt, shutdown, sockopt};
use sd_notify::NotifyState;

use crate::book::Book;
use crate::closing::Closer;
use crate::finding::Finder;
use crate::log::{Priority, say};
use crate::payer::Payer;
use crate::peer::{Peer, Process};
use crate::policy::{Action, Facts, Policy, Watcher};
use crate::requests;
use crate::shares::Shares;
use crate::sockets::Listener;
use crate::{Options, log};

/// For how long a client may say nothing.
const PATIENCE: Duration = Duration::from_secs(5);
/// Bytes of answers that a client may leave unread, of which the kernel makes twice as many: room for the longest.
const UNREAD: usize = 48 << 10;
/// Clients accepted at a time, so that those who are connected get their turn.
const ACCEPTED_AT_A_TIME: usize = 32;
/// From one look at whether pages are in use to the next.
const SWEEP_EVERY: Duration = Duration::from_millis(250);
/// So many looks go round all pages.
const SWEEPS_A_ROUND: usize = 16;
/// For how long what was measured of the kernel's clocks holds: a clocksource does not come and go.
const MEASURE_EVERY: Duration = Duration::from_secs(60);

/// SIGTERM, SIGINT and SIGHUP, as something to wait for.
pub struct Signals(SignalFd);

impl Signals {
    /// Blocks them in this thread and those that it starts.
    pub fn block() -> io::Result<Signals> {
        let mut set = SigSet::empty();
        for signal in [Signal::SIGTERM, Signal::SIGINT, Signal::SIGHUP] {
            set.add(signal);
        }
        set.thread_block()?;
        let flags = SfdFlags::SFD_CLOEXEC | SfdFlags::SFD_NONBLOCK;
        Ok(Signals(SignalFd::with_flags(&set, flags)?))
    }
}

/// What requests are answered from.
pub struct State {
    /// The pages.
    pub book: Book,
    begun: Instant,
    clocks: Option<ClockSet>,
    slow: ClockSet,
    measured: Instant,
    policy_file: PathBuf,
    /// Why the file as it is now is not in force.
    policy_error: Option<String>,
    watcher: Watcher,
    /// Requests, so far.
    pub refused: u64,
}

impl State {
    /// Whether a process may be given a page at all.
    pub fn policy_allows(&self, process: Process) -> Result<(), Refusal> {
        let policy = self.watcher.policy();
        if policy.rules() == 0 {
            return Ok(());
        }
        match policy.decide(&Facts::of(process)) {
            Some(decision) if decision.action == Action::Never => Err(Refusal::new(
                Code::Policy,
                format!("{} says never for process {}", self.policy_file.display(), process.pid),
            )),
            _ => Ok(()),
        }
    }

    /// Reads the policy again. One with a mistake changes nothing.
    fn reload(&mut self) {
        match Policy::read(&self.policy_file) {
            Ok(policy) => {
                let policy = policy.unwrap_or_default();
                say(
                    Priority::Info,
                    format_args!("the policy has {} rules now", policy.rules()),
                );
                self.watcher.replace(policy);
                self.policy_error = None;
            }
            Err(why) => {
                say(Priority::Warning, format_args!("{why}; the policy stays as it was"));
                self.policy_error = Some(why);
            }
        }
    }

    /// Clocks for who leaves it to the daemon.
    pub fn slow_clocks(&self) -> ClockSet {
        self.clocks.unwrap_or(self.slow)
    }

    /// For a client: `most` of the pages, from behind the one with the id `after`.
    pub fn status(&self, peer: Peer, after: u64, most: usize) -> Status {
        let (mut pages, next) = self.book.shown_to(peer, after, most);
        for page in &mut pages {
            page.rule = self.watcher.rule_of(page.inode);
        }
        let policy = self.policy_file.display().to_string();
        Status {
            version: env!("CARGO_PKG_VERSION").to_owned(),
            pid: std::process::id(),
            uptime_seconds: self.begun.elapsed().as_secs(),
            slow_clocks: self.slow_clocks().iter().collect(),
            rules: self.watcher.policy().rules(),
            policy: Some(cut_short(&policy, 4096)),
            policy_error: self.policy_error.as_deref().map(|why| cut_short(why, 1024)),
            notices: self.watcher.notices().map(str::to_owned),
            pages,
            pages_in_all: self.book.count(),
            next,
            refused: self.refused,
        }
    }

    fn measure(&mut self) {
        let slow = measure_for_auto(Assume::SamePath)
            .into_iter()
            .filter(|path| path.is_slow);
        self.slow = slow.fold(ClockSet::NONE, |set, path| {
            set.union(ClockSet::of_id(path.clock.id() as u32))
        });
        self.measured = Instant::now();
    }
}

/// As much of a text as an answer has room for.
fn cut_short(text: &str, bytes: usize) -> String {
    let end = (0..=bytes.min(text.len())).rfind(|end| text.is_char_boundary(*end));
    text[..end.unwrap_or(0)].to_owned()
}

struct Connection {
    socket: OwnedFd,
    peer: Peer,
    heard: Instant,
    /// He asks faster than he may: nothing is read from him until he may again.
    must_wait: bool,
    /// It is one of those that he may have.
    is_counted: bool,
}

/// The server's side of all conversations.
pub struct Server {
    listener: Listener,
    signals: Signals,
    connections: Vec<Connection>,
    /// Those that are over, and cannot be closed yet.
    over: Vec<Connection>,
    shares: Shares,
    closer: Closer,
    state: State,
    finder: Finder,
}

impl Server {
    /// One that is about to begin.
    pub fn new(
        options: &Options,
        policy: Policy,
        listener: Listener,
        signals: Signals,
        book: Book,
    ) -> io::Result<Server> {
        let now = Instant::now();
        let mut state = State {
            book,
            begun: now,
            clocks: options.clocks,
            slow: ClockSet::NONE,
            measured: now,
            policy_file: options.policy.clone(),
            policy_error: None,
            watcher: Watcher::start(policy, options)?,
            refused: 0,
        };
        if options.clocks.is_none() {
            state.measure();
        }
        let keeper = listener.keeper();
        Ok(Server {
            listener,
            signals,
            connections: Vec::new(),
            over: Vec::new(),
            shares: Shares::new(),
            closer: Closer::default(),
            state,
            finder: Finder::start(keeper)?,
        })
    }

    /// Serves until a signal says that it is enough, or the publisher has ended.
    pub fn run(mut self, publisher_ended: &dyn Fn() -> bool) -> Result<(), String> {
        log::say(
            Priority::Info,
            format_args!("serving; slow here: {}", names(self.state.slow_clocks())),
        );
        tell_manager(NotifyState::Ready);
        // Twice as often as the service manager asks for.
        let watchdog = sd_notify::watchdog_enabled().map(|every| every / 2);
        let mut barked = (Instant::now(), self.state.book.publishers_turns());
        let mut swept = Instant::now();
        loop {
            if !self.wait()? {
                break;
            }
            if publisher_ended() {
                return Err("the publisher has ended".into());
            }
            let now = Instant::now();
            if now.duration_since(swept) >= SWEEP_EVERY {
                swept = now;
                self.tidy(now);
            }
            if watchdog.is_some_and(|every| now.duration_since(barked.0) >= every) {
                let turns = self.state.book.publishers_turns();
                if turns != barked.1 {
                    tell_manager(NotifyState::Watchdog);
                }
                barked = (now, turns);
            }
        }
        tell_manager(NotifyState::Stopping);
        Ok(())
    }

    /// Waits for anything, and sees to it. False: it is enough.
    fn wait(&mut self) -> Result<bool, String> {
        let mut fds = vec![
            PollFd::new(self.signals.0.as_fd(), PollFlags::POLLIN),
            PollFd::new(self.listener.as_fd(), PollFlags::POLLIN),
            PollFd::new(self.finder.as_fd(), PollFlags::POLLIN),
        ];
        let others = fds.len();
        fds.extend(self.connections.iter().map(|connection| {
            let wanted = if connection.must_wait {
                PollFlags::empty()
            } else {
                PollFlags::POLLIN
            };
            PollFd::new(connection.socket.as_fd(), wanted)
        }));
        let waiting = self.connections.iter().any(|connection| connection.must_wait);
        let timeout = if waiting { Duration::from_millis(5) } else { SWEEP_EVERY };
        match poll(&mut fds, PollTimeout::try_from(timeout).unwrap_or(PollTimeout::ZERO)) {
            Ok(_) | Err(Errno::EINTR) => {}
            Err(error) => return Err(format!("poll: {error}")),
        }
        let ready: Vec<bool> = fds.iter().map(|fd| fd.any().unwrap_or(false)).collect();
        let (own, of_clients) = ready.split_at(others);
        if own[0] && !self.hear_signals() {
            return Ok(false);
        }
        if own[2] {
            self.take_up_found();
        }
        self.serve_those(of_clients);
        if own[1] {
            self.accept();
        }
        Ok(true)
    }

    /// False: it is enough.
    fn hear_signals(&mut self) -> bool {
        while let Ok(Some(signal)) = self.signals.0.read_signal() {
            if signal.ssi_signo != Signal::SIGHUP as u32 {
                return false;
            }
            self.state.reload();
        }
        true
    }

    fn accept(&mut self) {
        let now = Instant::now();
        for _ in 0..ACCEPTED_AT_A_TIME {
            let flags = SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK;
            let socket = match accept4(self.listener.as_fd().as_raw_fd(), flags) {
                // SAFETY: just accepted.
                Ok(fd) => unsafe { OwnedFd::from_raw_fd(fd) },
                Err(Errno::EMFILE | Errno::ENFILE) => {
                    // The kernel would say so again at once, and for as long as nobody leaves.
                    let waiting = |connection: &mut Connection| connection.must_wait;
                    for connection in self.connections.extract_if(.., waiting).collect::<Vec<_>>() {
                        self.end(connection, now);
                    }
                    self.close_over(now);
                    std::thread::sleep(Duration::from_millis(1));
                    return;
                }
                Err(_) => return,
            };
            let Ok(peer) = Peer::of(&socket) else { continue };
            // What waits to be read takes the daemon's memory.
            let _ = setsockopt(&socket, sockopt::SndBuf, &UNREAD);
            let connection = Connection {
                socket,
                peer,
                heard: now,
                must_wait: false,
                is_counted: self.shares.connect(peer.payer, now),
            };
            if !connection.is_counted {
                let refusal = Refusal::new(Code::Limit, "this user has as many connections as one may have");
                let answer = fastpath_protocol::Answer::refusing(0, &refusal);
                let _ = packet::send(connection.socket.as_fd(), &answer.bytes(), &[]);
                self.end(connection, now);
                continue;
            }
            self.connections.push(connection);
        }
    }

    /// Answers one packet of each client that is `ready`, if it may ask.
    fn serve_those(&mut self, ready: &[bool]) {
        let now = Instant::now();
        let mut ready = ready.iter();
        let (shares, state, closer) = (&mut self.shares, &mut self.state, &self.closer);
        let is_over = |connection: &mut Connection| {
            let is_ready = ready.next() == Some(&true) || connection.must_wait;
            if is_ready {
                connection.must_wait = !shares.ask(connection.peer.payer, now);
                !connection.must_wait && !connection.serve(state, closer, now)
            } else {
                now.duration_since(connection.heard) >= PATIENCE
            }
        };
        for connection in self.connections.extract_if(.., is_over).collect::<Vec<_>>() {
            self.end(connection, now);
        }
    }

    /// Closes a connection. What was sent and not received is closed with it, which can wait as well, so that is done aside, a little later;
    /// until then the connection counts.
    fn end(&mut self, connection: Connection, now: Instant) {
        if connection.has_descriptors_unread() {
            self.over.push(connection);
        } else if connection.is_counted {
            self.shares.disconnect(connection.peer.payer, now);
        }
    }

    /// Closes those that are over: all of a user in one thread, if not as much of its is being closed as may be.
    fn close_over(&mut self, now: Instant) {
        let mut of_payer: HashMap<Payer, Vec<OwnedFd>> = HashMap::new();
        for connection in std::mem::take(&mut self.over) {
            let payer = connection.peer.payer;
            if self.closer.is_busy_for(payer) {
                self.over.push(connection);
                continue;
            }
            if connection.is_counted {
                self.shares.disconnect(payer, now);
            }
            of_payer.entry(payer).or_default().push(connection.socket);
        }
        for (payer, sockets) in of_payer {
            self.closer.close(sockets, payer);
        }
    }

    fn take_up_found(&mut self) {
        for found in self.finder.take() {
            let pid = found.process.pid;
            let taken = found
                .process
                .offsets()
                .map_err(|refusal| refusal.sentence)
                .and_then(|offsets| self.state.book.take_up(found, offsets).map_err(|e| e.to_string()));
            match taken {
                Ok(()) => say(Priority::Notice, format_args!("process {pid}'s page is kept again")),
                Err(why) => say(
                    Priority::Warning,
                    format_args!("process {pid} stays on the kernel's path: {why}"),
                ),
            }
        }
    }

    fn tidy(&mut self, now: Instant) {
        let pages = self.state.book.size().div_ceil(SWEEPS_A_ROUND);
        self.state.book.sweep(pages);
        self.shares.tidy(now);
        self.close_over(now);
        self.state.watcher.forget_all_but(|inode| self.state.book.has(inode));
        if self.state.clocks.is_none() && now.duration_since(self.state.measured) >= MEASURE_EVERY {
            self.state.measure();
        }
    }
}

impl Connection {
    /// Whether a packet that was never received has descriptors. No other packet comes after this.
    fn has_descriptors_unread(&self) -> bool {
        let _ = shutdown(self.socket.as_raw_fd(), Shutdown::Both);
        packet::descriptors_wait(self.socket.as_fd())
    }

    /// Answers one packet. False: he is gone, or is to go.
    fn serve(&mut self, state: &mut State, closer: &Closer, now: Instant) -> bool {
        if closer.is_busy_for(self.peer.payer) {
            return false;
        }
        // Longer packets than a request are none, but are told so.
        let mut bytes = [0; Request::SIZE + 1];
        match packet::receive_any(self.socket.as_fd(), &mut bytes) {
            Ok(received) if received.is_cut_short || received.length == 0 => {
                closer.close(received.fds, self.peer.payer);
                false
            }
            Ok(packet::Received { length, fds, .. }) => {
                self.heard = now;
                let packet = &bytes[..length.min(bytes.len())];
                let answered = match closer.known(fds, self.peer.payer) {
                    Some(fds) => requests::answer(state, self.peer, packet, fds),
                    None => requests::refuse_descriptors(state),
                };
                let fds: Vec<_> = answered.fds.iter().map(AsFd::as_fd).collect();
                // There is no room only where he does not read.
                packet::send(self.socket.as_fd(), &answered.bytes(), &fds).is_ok()
            }
            Err(error) => error.kind() == io::ErrorKind::WouldBlock && now.duration_since(self.heard) < PATIENCE,
        }
    }
}

/// Reports the daemon's state to the service manager, if one started it (sd_notify(3)).
fn tell_manager(state: NotifyState<'_>) {
    let _ = sd_notify::notify(&[state]);
}

fn names(clocks: ClockSet) -> String {
    let names: Vec<_> = clocks
        .iter()
        .filter_map(|id| fastpath_measure::Clock::from_id(id as i32))
        .map(|clock| clock.name())
        .collect();
    if names.is_empty() {
        "no clock".into()
    } else {
        names.join(", ")
    }
}
