use std::cell::Cell;

use fastpath_page::{Page, Reader, Writer};

use super::*;

/// A host with a counter that ticks twice a nanosecond, on which each read of a clock takes `look_ns`.
struct Slow {
    counter: Cell<u64>,
    look_ns: u64,
}

impl Slow {
    fn new(look_ns: u64) -> Slow {
        Slow {
            counter: Cell::new(0),
            look_ns,
        }
    }

    fn pass(&self, ns: u64) -> u64 {
        self.counter.set(self.counter.get() + 2 * ns);
        self.counter.get()
    }

    fn look(&self) -> Bracket {
        let before = self.counter.get();
        let time_ns = self.pass(500) / 2 + 1_000_000_000;
        let after = self.pass(500);
        Bracket { before, time_ns, after }
    }

    fn sample(&self) -> Option<Sample> {
        let bracket = || self.look();
        Some(Sample {
            mono: bracket(),
            real: bracket(),
            raw: Some(bracket()),
            boot: Some(bracket()),
            tai: Some(bracket()),
            ntp: None,
        })
    }

    /// Lets a window pass, and refreshes from this sample.
    fn refresh(
        &self,
        refresher: &mut Refresher,
        writer: &mut Writer<'_>,
        sample: impl FnMut() -> Option<Sample>,
    ) -> Refreshed {
        self.pass(refresher.next_window_ns());
        refresher.refresh(
            Occasion::Due,
            writer,
            || self.pass(self.look_ns),
            || Some(self.look()),
            sample,
            || (),
        )
    }

    /// Refreshes for five seconds and returns the results.
    fn live(&self) -> Vec<Refreshed> {
        let page = Page::zeroed();
        let mut writer = Writer::new(&page);
        let mut refresher = Refresher::new(Config::default(), 0);
        let mut all = Vec::new();
        while self.counter.get() < 2 * 5_000_000_000 {
            self.pass(refresher.next_window_ns());
            all.push(refresher.refresh(
                Occasion::Due,
                &mut writer,
                || self.pass(self.look_ns),
                || Some(self.look()),
                || self.sample(),
                || {
                    self.pass(LEAD_NS);
                },
            ));
        }
        all
    }
}

#[test]
fn a_step_that_is_missed_each_time_sends_readers_to_the_kernel() {
    let host = Slow::new(100);
    let page = Page::zeroed();
    let mut writer = Writer::new(&page);
    let mut refresher = Refresher::new(Config::default(), 0);
    for _ in 0..20 {
        host.refresh(&mut refresher, &mut writer, || host.sample());
    }
    assert!(writer.hres().is_some());
    host.pass(1_000_000);
    let set_back = || {
        let mut sample = host.sample()?;
        sample.real.time_ns -= 500_000_000;
        sample.tai = None;
        Some(sample)
    };
    // The host is preempted for three milliseconds whenever it looks.
    let refreshed = refresher.refresh(
        Occasion::Step,
        &mut writer,
        || host.pass(3_000_000),
        || Some(host.look()),
        set_back,
        || (),
    );
    assert_eq!(refreshed, Refreshed::Missed);
    assert!(
        writer
            .hres()
            .is_none_or(|hres| !hres.may_answer_from(host.counter.get()))
    );
    assert!(
        matches!(refresher.take_news(), Some(News::Withdrawn(withdrawal)) if withdrawal.reason == Reason::StepMissed)
    );
    let refreshed = host.refresh(&mut refresher, &mut writer, set_back);
    assert_eq!(refreshed, Refreshed::Published);
}

#[test]
fn what_readers_were_shown_outlives_a_suspend() {
    let host = Slow::new(100);
    let page = Page::zeroed();
    let mut writer = Writer::new(&page);
    let mut refresher = Refresher::new(Config::default(), 0);
    let mut refresh = |slept_ns: u64| {
        let sample = || {
            let mut sample = host.sample()?;
            for bracket in [&mut sample.mono, sample.raw.as_mut()?] {
                bracket.time_ns -= slept_ns;
            }
            Some(sample)
        };
        host.refresh(&mut refresher, &mut writer, sample)
    };
    for _ in 0..20 {
        refresh(0);
    }
    // Asleep for less than an anchor may be used, and the counter goes on.
    host.pass(200_000_000);
    let reader = Reader::new(&page);
    let shown = reader.read(1, || host.counter.get()).expect("the anchor answers");
    assert_eq!(refresh(200_000_000), Refreshed::Withdrawn(Reason::Suspended));
    assert!(reader.floor(1, || host.counter.get()) >= Some(shown));
}

#[test]
fn no_read_goes_back_wherever_a_change_is_interrupted() {
    // The publisher loses its CPU when it looks at the counter: before the sample, and at each step of the change.
    for interrupted in 0..60 {
        let host = Slow::new(100);
        let page = Page::zeroed();
        let mut writer = Writer::new(&page);
        let mut refresher = Refresher::new(Config::default(), 0);
        for _ in 0..20 {
            host.refresh(&mut refresher, &mut writer, || host.sample());
        }
        // A slew has put the kernel's clock forward.
        let kernel = || {
            let mut kernel = host.look();
            kernel.time_ns += 300_000;
            kernel
        };
        let sample = || {
            let mut sample = host.sample()?;
            for bracket in [
                &mut sample.mono,
                &mut sample.real,
                sample.boot.as_mut()?,
                sample.tai.as_mut()?,
            ] {
                bracket.time_ns += 300_000;
            }
            Some(sample)
        };
        let last = Cell::new((0, 0));
        let read = || {
            let kernel = || {
                let ns = kernel().time_ns;
                (ns / 1_000_000_000, (ns % 1_000_000_000) as u32)
            };
            let answer = Reader::new(&page).answer(1, || host.counter.get(), kernel);
            assert!(
                answer >= last.get(),
                "{:?}, then {answer:?}: interrupted at look {interrupted}",
                last.get()
            );
            last.set(answer);
        };
        let looks = Cell::new(0);
        let counter = || {
            read();
            host.pass(if looks.get() == interrupted { 3_000_000 } else { 100 });
            looks.set(looks.get() + 1);
            read();
            host.counter.get()
        };
        for _ in 0..10 {
            host.pass(refresher.next_window_ns());
            refresher.refresh(Occasion::Due, &mut writer, counter, || Some(kernel()), &sample, || ());
        }
        assert!(looks.get() > interrupted && writer.hres().is_some());
        read();
    }
}

fn share_missed(look_ns: u64) -> f64 {
    let all = Slow::new(look_ns).live();
    let missed = all.iter().filter(|refreshed| **refreshed == Refreshed::Missed).count();
    missed as f64 / all.len() as f64
}

#[test]
fn a_host_too_slow_for_the_usual_lead_is_given_a_longer_one() {
    assert_eq!(share_missed(1_000), 0.0);
    // Both looks between an anchor and the page take longer together than the usual lead.
    assert!(share_missed(40_000) < 0.05, "{}", share_missed(40_000));
    assert!(share_missed(400_000) < 0.05, "{}", share_missed(400_000));
}
