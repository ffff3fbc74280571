//! A publisher that cannot run when it should: programs then fall back to the kernel, and read no wrong time.
//!
//! The hosts are the same every time, and are read from the first answer on.

#[allow(dead_code, reason = "the other tests need the rest")]
mod host;

use fastpath_clock::{Config, Discipline};
use fastpath_page::ClockSet;
use host::publisher::Publisher;
use host::{ACPI_PM, HPET, Host, Reads, VDSO};

/// The ACPI PM timer of an emulated machine: a read takes hardly longer than two of its steps.
const EMULATED_ACPI_PM: Reads = Reads {
    to_clock_ns: (300.0, 30.0),
    from_clock_ns: (300.0, 30.0),
    ..ACPI_PM
};

/// User Mode Linux: two switches of processes on this host before its clock is read, and two behind.
const UML: Reads = Reads {
    to_clock_ns: (6_500.0, 300.0),
    from_clock_ns: (6_500.0, 300.0),
    quantum_ns: 256.0,
    ..HPET
};

/// An AMD Zen: its counter advances in steps of 10 ns.
const ZEN: Reads = Reads {
    counter_step: 2_600,
    ..VDSO
};

/// A guest on such a CPU, whose counter is multiplied by the hypervisor: steps of 26 or 27 counts.
const SCALED_ZEN: Reads = Reads {
    counter_step: 2_637,
    ..ZEN
};

/// Disturbances of a publisher on a busy host.
#[derive(Clone, Copy, Default)]
struct Busy {
    /// Probability that one read of a clock is interrupted.
    interrupted: f64,
    /// Probability that an anchor is made too late.
    late: f64,
    /// Probability that a refresh comes late, by up to five windows.
    starved: f64,
    /// Probability that a delay begins. It lasts for up to eight refreshes, in which a read takes up to half as long
    /// again.
    delayed: f64,
}

const CALM: Busy = Busy {
    interrupted: 0.001,
    late: 0.0,
    starved: 0.0,
    delayed: 0.0,
};
const INTERRUPTED: Busy = Busy {
    interrupted: 0.3,
    late: 0.3,
    ..CALM
};
const STARVED: Busy = Busy { starved: 0.3, ..CALM };
const DELAYED: Busy = Busy {
    delayed: 0.01,
    late: 0.1,
    ..CALM
};
const ALL_OF_IT: Busy = Busy {
    starved: 0.3,
    ..INTERRUPTED
};

/// Runs such a host for a while under each of the usual settings. Returns the worst error in nanoseconds, and the
/// greatest share of reads that went to the kernel, of a publisher that has a timer.
fn worst_of(reads: Reads, busy: Busy) -> (u64, f64) {
    let (mut worst_ns, mut by_kernel) = (0, 0.0f64);
    let settings = [
        (Config::default(), 60.0),
        (Config::default().watched(), 20.0),
        (Config::on_demand(ClockSet::ALL), 60.0),
    ];
    for (config, seconds) in settings {
        let reads = Reads {
            interrupted: busy.interrupted,
            ..reads
        };
        for seed in 0..8 {
            let mut publisher = Publisher::new(Host::fixed(seed, 2.596_144, reads));
            publisher.discipline = Discipline::new(config);
            publisher.late = busy.late;
            let mut delayed = 0;
            while publisher.host.elapsed_ns < seconds * 1e9 {
                publisher.live(publisher.discipline.next_window_ns() as f64);
                if publisher.host.random.chance(busy.starved) {
                    let longest_ns = 5.0 * config.longest_window_ns as f64;
                    let late_ns = publisher.host.random.between(0.0, longest_ns);
                    for _ in 0..4 {
                        publisher.live(late_ns / 4.0);
                    }
                }
                if delayed == 0 && publisher.host.elapsed_ns > 1e9 && publisher.host.random.chance(busy.delayed) {
                    delayed = publisher.host.random.between(1.0, 9.0) as u32;
                }
                publisher.host.reads = reads;
                if delayed > 0 {
                    delayed -= 1;
                    let (least_ns, _) = reads.to_clock_ns;
                    publisher.host.reads.to_clock_ns.0 += publisher.host.random.between(0.0, least_ns);
                }
                publisher.refresh_now();
            }
            assert!(publisher.withdrawals.is_empty(), "{:?}", publisher.withdrawals);
            worst_ns = publisher.worst_ns_of.into_iter().fold(worst_ns, u64::max);
            if config.cap_windows > 1 {
                by_kernel = by_kernel.max(publisher.kernel_reads as f64 / publisher.reads as f64);
            }
        }
    }
    (worst_ns, by_kernel)
}

/// Returns the error that a program cannot see when it mixes the kernel's answers with ours: half of the least cost of
/// a read of the kernel's clock, and half of the step in which that advances.
fn invisible_ns(reads: Reads) -> f64 {
    (reads.to_clock_ns.0 + reads.from_clock_ns.0 + reads.quantum_ns) / 2.0
}

fn stays_within(reads: Reads, bound_ns: f64) {
    for busy in [CALM, INTERRUPTED, STARVED, DELAYED, ALL_OF_IT] {
        let (worst_ns, by_kernel) = worst_of(reads, busy);
        println!("worst {worst_ns} ns of {bound_ns}, {by_kernel:.4} by the kernel");
        assert!(worst_ns as f64 <= bound_ns, "{worst_ns} ns");
        // Of refreshes that are this late, one in nine leaves readers beyond four windows.
        let share = if busy.starved > 0.0 { 0.15 } else { 0.02 };
        assert!(by_kernel < share, "{by_kernel} of the reads asked the kernel");
    }
}

#[test]
fn beside_a_healthy_kernel_nothing_shows() {
    stays_within(VDSO, 20.0);
}

#[test]
fn by_a_counter_that_advances_in_steps_nothing_shows() {
    stays_within(ZEN, 40.0);
    stays_within(SCALED_ZEN, 40.0);
}

#[test]
fn beside_the_hpet_nothing_shows() {
    stays_within(HPET, invisible_ns(HPET));
}

#[test]
fn beside_acpi_pm_nothing_shows() {
    stays_within(ACPI_PM, invisible_ns(ACPI_PM));
}

#[test]
fn beside_an_emulated_acpi_pm_nothing_shows() {
    stays_within(EMULATED_ACPI_PM, invisible_ns(EMULATED_ACPI_PM));
}

#[test]
fn in_user_mode_linux_nothing_shows() {
    stays_within(UML, invisible_ns(UML));
}

#[test]
fn a_publisher_that_is_preempted_in_its_first_samples_tells_no_clock_wrong() {
    let starts = [
        (0.02, 2e7, ALL_OF_IT.late, 0.0),
        (0.02, 2e7, 0.0, 0.3),
        (0.1, 1e8, 0.3, 0.5),
        (0.3, 1e7, 0.0, 0.0),
        (0.3, 1e5, 0.3, 0.3),
    ];
    for (interrupted, interrupted_for_ns, late, starved) in starts {
        let reads = Reads {
            interrupted,
            interrupted_for_ns,
            // Beside a busy thread of the same core.
            to_clock_ns: (14.0, 30.0),
            from_clock_ns: (14.0, 30.0),
            ..VDSO
        };
        // A step of the counter hides as much.
        let of_steps = [(VDSO, 50), (ZEN, 60), (SCALED_ZEN, 60)];
        for (Reads { counter_step, .. }, bound_ns) in of_steps {
            let reads = Reads { counter_step, ..reads };
            let mut worst_ns = [0; 5];
            for seed in 0..2_000 {
                let mut publisher = Publisher::new(Host::fixed(seed, 2.596_144, reads));
                publisher.late = late;
                while publisher.host.elapsed_ns < 1e9 {
                    publisher.live(publisher.discipline.next_window_ns() as f64);
                    if publisher.host.random.chance(starved) {
                        let late_ns = publisher.host.random.between(0.0, 3e7);
                        publisher.live(late_ns);
                    }
                    publisher.refresh_now();
                }
                worst_ns = std::array::from_fn(|clock| worst_ns[clock].max(publisher.worst_ns_of[clock]));
            }
            println!("interrupted {interrupted}, for {interrupted_for_ns} ns: worst {worst_ns:?} ns of {bound_ns}");
            assert!(worst_ns.iter().all(|ns| *ns <= bound_ns), "{worst_ns:?}");
        }
    }
}
