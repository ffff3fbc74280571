//! Says to the service manager how the daemon is (sd_notify(3)).

use std::os::linux::net::SocketAddrExt;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::time::Duration;

/// Where the service manager listens, if there is one.
pub struct Manager(Option<(UnixDatagram, SocketAddr)>);

impl Manager {
    /// The one that started this process.
    pub fn of_this_process() -> Manager {
        let found = (|| {
            let path = std::env::var_os("NOTIFY_SOCKET")?;
            let address = match path.as_bytes() {
                [b'@', name @ ..] => SocketAddr::from_abstract_name(name),
                _ => SocketAddr::from_pathname(&path),
            };
            let socket = UnixDatagram::unbound().ok()?;
            socket.set_nonblocking(true).ok()?;
            Some((socket, address.ok()?))
        })();
        Manager(found)
    }

    /// Tells it `READY=1` and the like.
    pub fn tell(&self, state: &str) {
        if let Some((socket, address)) = &self.0 {
            let _ = socket.send_to_addr(state.as_bytes(), address);
        }
    }

    /// How often it wants to be told `WATCHDOG=1`, at least (sd_watchdog_enabled(3)).
    pub fn watchdog(&self) -> Option<Duration> {
        let number = |name| std::env::var(name).ok()?.parse::<u64>().ok();
        if number("WATCHDOG_PID").is_some_and(|pid| pid != u64::from(std::process::id())) {
            return None;
        }
        let usec = number("WATCHDOG_USEC").filter(|usec| *usec > 0)?;
        self.0.as_ref()?;
        Some(Duration::from_micros(usec) / 2)
    }
}
