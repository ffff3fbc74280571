//! A simulated host, in virtual time, and a guest on it that reads at any time.

// Each test program uses a part of it.
#![allow(dead_code)]

#[path = "../../../clock/tests/host/mod.rs"]
pub mod host;

use std::cell::{Cell, RefCell};

use fastpath_page::Reader;
use fastpath_publish::host::{Advice, ClockSet, Page, Publisher, PublisherConfig, Relation, Source, Trap};
use host::{Host, Reads};

pub const REALTIME: i32 = 0;
pub const MONOTONIC: i32 = 1;
/// Addresses of the image's system calls, and of the image in the guest.
pub const SYSTEM_CALLS: [u64; 2] = [0x400, 0x520];
pub const IMAGE: u64 = 0x7fff_1000;
/// Least cost of a trapped call to the host.
pub const TRAP_NS: f64 = 1_300.0;

/// The simulated host as a source of time.
pub struct Simulated(pub RefCell<Host>, HoldUp);

/// Makes one of the host's next looks take 40 ms, during which the kernel's rate changes, in parts per million.
#[derive(Default)]
struct HoldUp {
    looks_left: Cell<Option<u32>>,
    ppm: Cell<f64>,
    /// The kernel's time at the end of it.
    shown_ns: Cell<u64>,
}

impl Simulated {
    /// Delays the host for 40 ms before the `nth` look from now, and changes the kernel's rate.
    pub fn hold_up(&self, nth: u32, ppm: f64) {
        self.1.looks_left.set(Some(nth));
        self.1.ppm.set(ppm);
    }

    /// Returns the kernel's time when the host continued, if it was delayed.
    pub fn held_up_until_ns(&self) -> Option<u64> {
        self.1.looks_left.get().is_none().then(|| self.1.shown_ns.get())
    }

    fn look(&self) {
        let Some(left) = self.1.looks_left.get() else { return };
        self.1.looks_left.set(left.checked_sub(1));
        if left == 0 {
            let mut host = self.0.borrow_mut();
            host.advance(20e6);
            host.ntp_ppm = self.1.ppm.get();
            host.advance(20e6);
            self.1.shown_ns.set(host.mono_ns());
        }
    }
}

impl Source for Simulated {
    fn counter(&self) -> u64 {
        self.look();
        let mut host = self.0.borrow_mut();
        let took_ns = host.reads.from_clock_ns.0 + host.reads.from_clock_ns.1 * host.random.unit();
        host.advance(took_ns / 2.0);
        let count = host.counter.whole;
        host.advance(took_ns / 2.0);
        count
    }

    fn clock(&self, id: i32) -> Option<u64> {
        self.look();
        let mut host = self.0.borrow_mut();
        let took_ns = host.reads.to_clock_ns.0 / 2.0 + host.reads.to_clock_ns.1 * host.random.unit();
        host.advance(took_ns);
        let shown = host.clock_ns(id as u32)?;
        host.advance(1.0);
        Some(shown)
    }
}

/// A guest that reads MONOTONIC, on a host that traps its system calls.
pub struct Guest<'p> {
    pub publisher: Publisher<'p, Simulated>,
    pub page: &'p Page,
    pub last_ns: u64,
    /// Errors against the kernel's clock, of the reads that the page answered.
    pub errors_ns: Vec<i64>,
    pub reads: u64,
    pub traps: u64,
    pub refreshes: u64,
}

impl<'p> Guest<'p> {
    pub fn new(page: &'p Page, reads: Reads, relation: Relation) -> Guest<'p> {
        let options = PublisherConfig {
            clocks: ClockSet::ALL,
            on_demand: true,
            relation,
            ..PublisherConfig::default()
        };
        let host = Host::new(2.596_144, reads);
        Guest {
            publisher: Publisher::new(page, Simulated(RefCell::new(host), HoldUp::default()), options),
            page,
            last_ns: 0,
            errors_ns: Vec::new(),
            reads: 0,
            traps: 0,
            refreshes: 0,
        }
    }

    pub fn host<R>(&self, look: impl FnOnce(&mut Host) -> R) -> R {
        look(&mut self.source().0.borrow_mut())
    }

    pub fn source(&self) -> &Simulated {
        self.publisher.source()
    }

    pub fn trap(&self, clock_id: i32, answered_ns: Option<u64>) -> Advice {
        self.publisher.trapped(&Trap {
            system_calls: &SYSTEM_CALLS,
            image_address: IMAGE,
            pc: IMAGE + SYSTEM_CALLS[0],
            clock_id,
            answered_ns,
        })
    }

    /// Makes one clock_gettime of the guest. Time never goes back by more than the kernel's own answer lies behind the
    /// page's.
    pub fn read(&mut self) {
        self.reads += 1;
        let counter = self.host(|host| host.counter.whole);
        let counter = self.publisher.relation().guest(counter);
        let now_ns = match Reader::new(self.page).read(MONOTONIC as u32, || counter) {
            Some((sec, nsec)) => {
                let now_ns = sec * 1_000_000_000 + u64::from(nsec);
                let kernel_ns = self.host(|host| host.mono_ns());
                self.errors_ns.push(now_ns.wrapping_sub(kernel_ns) as i64);
                assert!(now_ns >= self.last_ns, "{} ns back", self.last_ns - now_ns);
                now_ns
            }
            None => {
                self.traps += 1;
                self.host(|host| host.advance(TRAP_NS / 2.0));
                let kernel_ns = self.host(|host| host.mono_ns());
                if self.trap(MONOTONIC, Some(kernel_ns)) != Advice::LeaveAlone {
                    self.refreshes += 1;
                    self.publisher.publish().expect("alone, and all clocks can be read");
                }
                self.host(|host| host.advance(TRAP_NS / 2.0));
                kernel_ns
            }
        };
        self.last_ns = now_ns;
    }

    /// Reads about every `ns` for so many seconds.
    pub fn busy(&mut self, ns: f64, seconds: f64) {
        let end_ns = self.host(|host| host.elapsed_ns) + seconds * 1e9;
        while self.host(|host| host.elapsed_ns) < end_ns {
            self.read();
            self.host(|host| {
                let pause_ns = ns * host.random.between(0.5, 1.5);
                host.advance(pause_ns);
            });
        }
    }

    pub fn sleep(&mut self, seconds: f64) {
        self.host(|host| host.advance(seconds * 1e9));
    }

    pub fn worst_ns(&self) -> i64 {
        self.errors_ns.iter().map(|error_ns| error_ns.abs()).max().unwrap_or(0)
    }

    pub fn forget(&mut self) {
        self.errors_ns.clear();
        (self.reads, self.traps, self.refreshes) = (0, 0, 0);
    }
}
