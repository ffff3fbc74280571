//! Serves clients: one epoll(7) instance over all of them, without waiting for any. Not poll(2), which fails once
//! RLIMIT_NOFILE is below the number of descriptors.
//!
//! Each packet is a request, and its answer is sent at once; if there is no room for the answer, the client does not
//! read, and its connection is closed. A connection without a request for [`SILENCE`] is closed, too. So no client
//! costs more than a descriptor for a while.

use std::collections::{BTreeMap, HashMap};
use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::time::{Duration, Instant};

use fastpath_page::ClockSet;
use fastpath_protocol::{Code, Request, RequestRefusal, packet};
use nix::errno::Errno;
use nix::sys::epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags, EpollTimeout};
use nix::sys::signal::{SigSet, Signal};
use nix::sys::signalfd::{SfdFlags, SignalFd};
use nix::sys::socket::{Shutdown, setsockopt, shutdown, sockopt};
use sd_notify::NotifyState;

use crate::account::Account;
use crate::closing::Closer;
use crate::finding::Finder;
use crate::log::{Priority, say};
use crate::peer::{Examined, Peer};
use crate::policy::Policy;
use crate::registry::Registry;
use crate::requests;
use crate::shares::Shares;
use crate::sockets::{Listener, QUEUE};
use crate::state::DaemonState;
use crate::{DaemonOptions, log};

/// Timeout of a silent connection.
const SILENCE: Duration = Duration::from_secs(5);
/// Size in bytes of the answers that a client may leave unread, which the kernel doubles: room for the longest answer.
const UNREAD: usize = 48 << 10;
/// Number of clients that are accepted at a time, so that connected clients get their turn: all of a full queue.
const ACCEPTED_AT_A_TIME: usize = QUEUE as usize;
/// Time between two checks whether pages are in use.
const SWEEP_EVERY: Duration = Duration::from_millis(250);
/// Number of checks that together cover all pages.
const SWEEPS_A_ROUND: usize = 16;

/// SIGTERM, SIGINT and SIGHUP as a descriptor for epoll(7).
pub(crate) struct Signals(SignalFd);

impl Signals {
    /// Blocks them in this thread and in the threads that it starts.
    pub(crate) fn block() -> io::Result<Signals> {
        let mut set = SigSet::empty();
        for signal in [Signal::SIGTERM, Signal::SIGINT, Signal::SIGHUP] {
            set.add(signal);
        }
        set.thread_block()?;
        let flags = SfdFlags::SFD_CLOEXEC | SfdFlags::SFD_NONBLOCK;
        Ok(Signals(SignalFd::with_flags(&set, flags)?))
    }
}

/// A connected client.
struct Connection {
    socket: OwnedFd,
    peer: Peer,
    last_read: Instant,
    /// The client asks faster than it may: nothing is read from it until it may again.
    must_wait: bool,
    /// Whether the connection counts against its user's share.
    is_counted: bool,
}

/// Numbers of the events that are not a connection's.
const SIGNALS: u64 = u64::MAX;
const LISTENER: u64 = SIGNALS - 1;
const FINDER: u64 = LISTENER - 1;
/// Number of events that are handled at a time.
const EVENTS: usize = 256;

/// The server and all connections.
pub(crate) struct Server {
    listener: Listener,
    signals: Signals,
    events: Epoll,
    /// Each by its number, under which its events come unless it must wait.
    connections: BTreeMap<u64, Connection>,
    next_connection: u64,
    /// Connections that are over, and cannot be closed yet.
    over: Vec<Connection>,
    examined: Examined,
    shares: Shares,
    closer: Closer,
    state: DaemonState,
    finder: Finder,
}

impl Server {
    /// Creates a server.
    pub(crate) fn new(
        options: &DaemonOptions,
        policy: Policy,
        listener: Listener,
        signals: Signals,
        registry: Registry,
    ) -> io::Result<Server> {
        let state = DaemonState::new(options, policy, registry)?;
        let finder = Finder::start(listener.keeper())?;
        let events = Epoll::new(EpollCreateFlags::EPOLL_CLOEXEC)?;
        events.add(&signals.0, readable(SIGNALS))?;
        events.add(&listener, readable(LISTENER))?;
        events.add(&finder, readable(FINDER))?;
        Ok(Server {
            listener,
            signals,
            events,
            connections: BTreeMap::new(),
            next_connection: 0,
            over: Vec::new(),
            examined: Examined::default(),
            shares: Shares::new(),
            closer: Closer::default(),
            state,
            finder,
        })
    }

    /// Serves until a signal ends it, or the publisher has ended.
    pub(crate) fn run(mut self, publisher_ended: &dyn Fn() -> bool) -> Result<(), String> {
        log::say(
            Priority::Info,
            format_args!("serving; slow here: {}", names(self.state.slow_clocks())),
        );
        tell_manager(NotifyState::Ready);
        // Twice as often as the service manager requires.
        let watchdog = sd_notify::watchdog_enabled().map(|every| every / 2);
        let mut notified = (Instant::now(), self.state.registry.publishers_turns());
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
            if watchdog.is_some_and(|every| now.duration_since(notified.0) >= every) {
                let turns = self.state.registry.publishers_turns();
                if turns != notified.1 {
                    tell_manager(NotifyState::Watchdog);
                }
                notified = (now, turns);
            }
        }
        tell_manager(NotifyState::Stopping);
        Ok(())
    }

    /// Waits for events and handles them. Returns false if the server must end.
    fn wait(&mut self) -> Result<bool, String> {
        let waiting = self.connections.values().any(|connection| connection.must_wait);
        let timeout = if waiting { Duration::from_millis(5) } else { SWEEP_EVERY };
        let mut events = [EpollEvent::empty(); EVENTS];
        let timeout = EpollTimeout::try_from(timeout).unwrap_or(EpollTimeout::ZERO);
        let count = match self.events.wait(&mut events, timeout) {
            Ok(count) => count,
            Err(Errno::EINTR) => 0,
            Err(error) => return Err(format!("epoll_wait: {error}")),
        };
        let ready: Vec<u64> = events[..count].iter().map(EpollEvent::data).collect();
        if ready.contains(&SIGNALS) && !self.read_signals() {
            return Ok(false);
        }
        if ready.contains(&FINDER) {
            self.adopt_found();
        }
        self.serve_those(ready.iter().copied().filter(|number| *number < FINDER));
        if ready.contains(&LISTENER) {
            self.accept();
        }
        Ok(true)
    }

    /// Handles signals. Returns false if the server must end.
    fn read_signals(&mut self) -> bool {
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
            let socket = match self.listener.accept() {
                Ok(socket) => socket,
                Err(Errno::EMFILE | Errno::ENFILE) => {
                    // The kernel would report this again at once, until a descriptor is closed.
                    self.end_those(now, |connection| connection.must_wait);
                    self.close_over(now);
                    std::thread::sleep(Duration::from_millis(1));
                    return;
                }
                Err(_) => return,
            };
            let peer = match packet::is_closed(socket.as_fd()) {
                false => self.examined.peer(&socket, now).unwrap_or(Peer::ENDED),
                true => Peer::ENDED,
            };
            if peer == Peer::ENDED {
                // Its descriptors may take long to close.
                self.end(Connection::new(socket, peer), now);
                continue;
            }
            // Unread answers take the daemon's memory.
            let _ = setsockopt(&socket, sockopt::SndBuf, &UNREAD);
            let connection = Connection {
                is_counted: self.shares.connect(peer.account, now),
                ..Connection::new(socket, peer)
            };
            if !connection.is_counted {
                let refusal = RequestRefusal::new(Code::Limit, "this user has as many connections as one may have");
                let answer = fastpath_protocol::Answer::refusing(0, &refusal);
                let _ = packet::send(connection.socket.as_fd(), &answer.bytes(), &[]);
                self.end(connection, now);
                continue;
            }
            let number = self.next_connection;
            self.next_connection += 1;
            match self.events.add(&connection.socket, readable(number)) {
                Ok(()) => drop(self.connections.insert(number, connection)),
                Err(_) => self.end(connection, now),
            }
        }
    }

    /// Answers one packet of each client that is `ready` or had to wait, if its share allows that.
    fn serve_those(&mut self, ready: impl Iterator<Item = u64>) {
        let now = Instant::now();
        let waiting = self.connections.iter().filter(|(_, connection)| connection.must_wait);
        let mut numbers: Vec<u64> = waiting.map(|(number, _)| *number).chain(ready).collect();
        numbers.sort_unstable();
        for number in numbers {
            let Some(connection) = self.connections.get_mut(&number) else {
                continue;
            };
            let had_to_wait = connection.must_wait;
            connection.must_wait = !self.shares.ask(connection.peer.account, now);
            let is_over = !connection.must_wait && !connection.serve(&mut self.state, &self.closer, now);
            let watched = match (had_to_wait, connection.must_wait) {
                (false, true) => self.events.delete(&connection.socket),
                (true, false) if !is_over => self.events.add(&connection.socket, readable(number)),
                _ => Ok(()),
            };
            if (is_over || watched.is_err())
                && let Some(connection) = self.connections.remove(&number)
            {
                self.end(connection, now);
            }
        }
    }

    /// Closes some connections.
    fn end_those(&mut self, now: Instant, which: impl Fn(&Connection) -> bool) {
        let them = self.connections.iter().filter(|(_, connection)| which(connection));
        for number in them.map(|(number, _)| *number).collect::<Vec<_>>() {
            if let Some(connection) = self.connections.remove(&number) {
                self.end(connection, now);
            }
        }
    }

    /// Closes a connection. Descriptors that were sent and not received are closed with it, which can wait, so that is
    /// done by another thread a little later; until then the connection counts.
    fn end(&mut self, connection: Connection, now: Instant) {
        if connection.has_descriptors_unread() {
            // It is still open, and would be reported again and again.
            let _ = self.events.delete(&connection.socket);
            self.over.push(connection);
        } else if connection.is_counted {
            self.shares.disconnect(connection.peer.account, now);
        }
    }

    /// Closes the connections that are over, those of one user in one thread, unless that user has as many closing
    /// threads as it may.
    fn close_over(&mut self, now: Instant) {
        let mut of_account: HashMap<Account, Vec<OwnedFd>> = HashMap::new();
        for connection in std::mem::take(&mut self.over) {
            let account = connection.peer.account;
            if self.closer.is_busy_for(account) {
                self.over.push(connection);
                continue;
            }
            if connection.is_counted {
                self.shares.disconnect(account, now);
            }
            of_account.entry(account).or_default().push(connection.socket);
        }
        for (account, sockets) in of_account {
            self.closer.close(sockets, account);
        }
    }

    fn adopt_found(&mut self) {
        for found in self.finder.take() {
            let pid = found.owner.process.pid;
            let taken = found
                .owner
                .process
                .offsets()
                .map_err(|refusal| refusal.sentence)
                .and_then(|offsets| self.state.registry.adopt(found, offsets).map_err(|e| e.to_string()));
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
        let pages = self.state.registry.size().div_ceil(SWEEPS_A_ROUND);
        self.state.registry.sweep(pages);
        self.shares.tidy(now);
        self.examined.tidy(now);
        self.end_those(now, |connection| {
            !connection.must_wait && now.duration_since(connection.last_read) >= SILENCE
        });
        self.close_over(now);
        self.state.measure_if_due(now);
    }
}

impl Connection {
    /// Returns a connection that counts against no share.
    fn new(socket: OwnedFd, peer: Peer) -> Connection {
        Connection {
            socket,
            peer,
            last_read: Instant::now(),
            must_wait: false,
            is_counted: false,
        }
    }

    /// Returns whether a packet with descriptors was never received. No other packet comes after this.
    fn has_descriptors_unread(&self) -> bool {
        let _ = shutdown(self.socket.as_raw_fd(), Shutdown::Both);
        packet::descriptors_wait(self.socket.as_fd())
    }

    /// Answers one packet. Returns false if the connection is over, or must be closed.
    fn serve(&mut self, state: &mut DaemonState, closer: &Closer, now: Instant) -> bool {
        if closer.is_busy_for(self.peer.account) {
            return false;
        }
        // A longer packet is not a request, but gets a refusal.
        let mut bytes = [0; Request::SIZE + 1];
        match packet::receive_any(self.socket.as_fd(), &mut bytes) {
            Ok(received) if received.is_cut_short || received.length == 0 => {
                closer.close(received.fds, self.peer.account);
                false
            }
            Ok(packet::Received { length, fds, .. }) => {
                self.last_read = now;
                let packet = &bytes[..length.min(bytes.len())];
                let answered = match closer.known(fds, self.peer.account) {
                    Some(fds) => requests::answer(state, self.peer, packet, fds),
                    None => requests::refuse_descriptors(state),
                };
                let fds: Vec<_> = answered.fds.iter().map(AsFd::as_fd).collect();
                // There is no room only if the client does not read.
                packet::send(self.socket.as_fd(), &answered.bytes(), &fds).is_ok()
            }
            Err(error) => error.kind() == io::ErrorKind::WouldBlock && now.duration_since(self.last_read) < SILENCE,
        }
    }
}

/// Returns what is waited for of a descriptor, with the number of its events.
fn readable(number: u64) -> EpollEvent {
    EpollEvent::new(EpollFlags::EPOLLIN, number)
}

/// Reports the daemon's state to the service manager, if one started it (sd_notify(3)).
fn tell_manager(state: NotifyState<'_>) {
    let _ = sd_notify::notify(&[state]);
}

fn names(clocks: ClockSet) -> String {
    let names: Vec<_> = clocks
        .iter()
        .filter_map(|id| fastpath_page::Clock::from_id(id as i32))
        .map(|clock| clock.name())
        .collect();
    if names.is_empty() {
        "no clock".into()
    } else {
        names.join(", ")
    }
}
