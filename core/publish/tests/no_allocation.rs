//! Nothing but `evidence::examine` allocates.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

use fastpath_page::Writer;
use fastpath_publish::host::image::{Image, InstanceConfig, Placement};
use fastpath_publish::host::{Advice, Page, Publisher, PublisherConfig, Refreshed, ThisHost, Trap, evidence, init};

thread_local! {
    static ALLOCATIONS: Cell<u64> = const { Cell::new(0) };
}

struct Counting;

// SAFETY: passes every call on to the system's allocator.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        let _ = ALLOCATIONS.try_with(|count| count.set(count.get() + 1));
        // SAFETY: the caller upholds the contract of `alloc`.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        let _ = ALLOCATIONS.try_with(|count| count.set(count.get() + 1));
        // SAFETY: the caller upholds the contract of `dealloc`.
        unsafe { System.dealloc(pointer, layout) }
    }
}

#[global_allocator]
static COUNTING: Counting = Counting;

fn allocations(work: impl FnOnce()) -> u64 {
    let before = ALLOCATIONS.get();
    work();
    ALLOCATIONS.get() - before
}

#[test]
fn the_counting_counts() {
    assert!(allocations(|| drop(std::hint::black_box(vec![1]))) >= 1);
}

#[test]
fn nothing_but_the_comparison_of_cpus_allocates() {
    let mut buffer = vec![0; Image::host().size()];
    let (mut published, mut leave_alone) = (0, 0);
    let page = Box::new(Page::zeroed());
    let count = allocations(|| {
        evidence::is_promising(evidence::Trust::Invariant).expect("this host's counter is fit for tests");
        let image = Image::host();
        image
            .instantiate_into(&InstanceConfig::at(Placement::at(0x7000_0000)), &mut buffer)
            .expect("an instance");
        Writer::new(&page).init(&init::of_this_host());
        for on_demand in [false, true] {
            let options = PublisherConfig {
                on_demand,
                ..PublisherConfig::default()
            };
            let publisher = Publisher::new(&page, ThisHost, options);
            // Enough for the rings of the discipline to fill and turn.
            for _ in 0..600 {
                let slept = libc::timespec {
                    tv_sec: 0,
                    tv_nsec: 1_000_000,
                };
                // SAFETY: `slept` is a valid timespec.
                unsafe { libc::nanosleep(&slept, std::ptr::null_mut()) };
                published += u32::from(publisher.publish() == Ok(Refreshed::Published));
                let advice = publisher.trapped(&Trap {
                    system_calls: image.system_calls(),
                    image_address: 0x7000_0000,
                    pc: 0x7000_0000 + image.system_calls()[0],
                    clock_id: libc::CLOCK_MONOTONIC,
                    answered_ns: Some(1),
                });
                leave_alone += u32::from(advice == Advice::LeaveAlone);
                std::hint::black_box(publisher.state());
            }
            let _ = publisher.publish_step();
            publisher
                .withdraw(fastpath_publish::host::Reason::Host(0))
                .expect("alone");
        }
    });
    assert!(published > 20, "{published}");
    assert!(leave_alone > 0);
    assert_eq!(count, 0);
}
