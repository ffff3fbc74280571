//! fastpath's page in a process, as far as it can be read.

use super::facts::PageFacts;
use super::root::{Root, rights_to_examine};
use fastpath_evidence::{PageCopy, Residuals, age_of};
use fastpath_image::{Image, Isa, Vdso};
use fastpath_measure::clocks::Clock;
use fastpath_measure::counter;
use fastpath_os::Mapping;
use fastpath_page::layout::{Latch, MAGIC};
use fastpath_page::{ClockSet, PAGE_SIZE, Page, Reader};
use std::os::unix::fs::FileExt;

/// Returns whether a page is still at this address of a process.
pub(super) fn is_at(pid: i32, address: u64) -> bool {
    let mut magic = 0_u64;
    let length = size_of_val(&magic);
    let own = libc::iovec {
        iov_base: (&raw mut magic).cast(),
        iov_len: length,
    };
    let its = libc::iovec {
        iov_base: address as *mut libc::c_void,
        iov_len: length,
    };
    // SAFETY: `own` describes `magic`; the other address is never accessed by this process.
    let read = unsafe { libc::process_vm_readv(pid, &own, 1, &its, 1, 0) };
    read == length as isize && magic == MAGIC
}

/// Finds the page among a process's mappings. Its contents are read through /proc/PID/mem, which requires the right to
/// trace the process.
pub(super) fn look(root: &Root, process: &str, maps: &[Mapping]) -> Option<PageFacts> {
    let mapping = PageCopy::mapping(maps)?;
    let file = format!("/proc/{process}/mem");
    let memory = root.open(&file);
    let facts = memory.and_then(|memory| Ok(read(&memory, mapping.start)?.unwrap_or_default()));
    Some(facts.unwrap_or_else(|error| {
        root.miss("how fresh fastpath's page is", &file, &error, &rights_to_examine());
        PageFacts::default()
    }))
}

/// Reads a page; `None` if it is none.
fn read(memory: &std::fs::File, address: u64) -> std::io::Result<Option<PageFacts>> {
    let Some(first) = PageCopy::read(memory, address)? else {
        return Ok(None);
    };
    let first = of_page(&first);
    let answered = |facts: &PageFacts| facts.serves.as_ref().map(Vec::len);
    if answered(&first) == first.clocks.as_ref().map(Vec::len) {
        return Ok(Some(first));
    }
    // A copy made during a refresh may answer fewer clocks; the next copy is complete.
    let more = (0..2)
        .filter_map(|_| PageCopy::read(memory, address).ok()?)
        .map(|page| of_page(&page));
    Ok(std::iter::once(first).chain(more).max_by_key(answered))
}

/// Does the same, and looks at the image behind the page.
pub(super) fn look_with_image(root: &Root, process: &str, maps: &[Mapping]) -> Option<PageFacts> {
    let facts = look(root, process, maps)?;
    let memory = root.open(&format!("/proc/{process}/mem"));
    let is_without_vdso = memory
        .ok()
        .and_then(|memory| is_without_vdso(&memory, PageCopy::mapping(maps)?.end, &facts));
    Some(PageFacts {
        is_without_vdso,
        ..facts
    })
}

/// Returns whether no vDSO of the kernel's is behind the image. Without an image, `run --without-vdso` has removed the
/// kernel's vDSO and mapped nothing in its place.
fn is_without_vdso(memory: &std::fs::File, image_at: u64, facts: &PageFacts) -> Option<bool> {
    let mut bytes = vec![0; PAGE_SIZE];
    memory.read_exact_at(&mut bytes, image_at).ok()?;
    let has_kernel_behind = |bytes: &[u8]| {
        let vdso = Vdso::parse(bytes).ok()?;
        Image::for_isa(Isa::of_elf(vdso.machine(), vdso.is_64())?)?.has_kernel_behind(bytes)
    };
    match has_kernel_behind(&bytes) {
        Some(is_behind) => Some(!is_behind),
        None => facts.clocks.as_ref().filter(|clocks| clocks.is_empty()).map(|_| true),
    }
}

fn of_page(page: &Page) -> PageFacts {
    let reader = Reader::new(page);
    let in_force = |latch: &Latch| latch.copy[0].answered();
    // The page of a plain `run` states its clocks only in its anchors.
    let kept = reader.clocks().union(in_force(&page.hres)).union(in_force(&page.raw));
    let is_kept = |clock: &&Clock| kept.contains(ClockSet::of_id(clock.id() as u32));
    let stats = reader.stats();
    let counter_of_page = counter::of_page(page);
    let answers = |clock: &&Clock| reader.read(clock.id() as u32, &counter_of_page).is_some();
    let serves = || {
        Clock::SERVED
            .iter()
            .filter(answers)
            .map(|clock| clock.name().into())
            .collect()
    };
    PageFacts {
        serves: counter::usable().then(serves),
        clocks: Some(
            Clock::SERVED
                .iter()
                .filter(is_kept)
                .map(|clock| clock.name().into())
                .collect(),
        ),
        is_without_vdso: None,
        age_ns: age_of(page).map(|age| age.as_nanos() as u64),
        refreshes: Some(stats.refreshes),
        residual_ns: Some(stats.residual_ns),
        publisher_pid: Some(stats.publisher_pid),
        withdrawn: stats.withdrawn_reason.map(|reason| reason.to_string()),
        experience: Some(Residuals::of_page(page)),
    }
}

#[cfg(test)]
mod tests {
    use super::super::root::tests::Tree;
    use super::*;
    use fastpath_page::Reason;
    use fastpath_page::{Init, PAGE_SIZE, Withdrawal, Writer};
    use std::time::Duration;

    fn mapping(name: &str, start: usize) -> Mapping {
        Mapping {
            start: start as u64,
            end: (start + PAGE_SIZE) as u64,
            name: name.to_owned(),
            device: fastpath_os::device_of_memory(),
            ..Mapping::default()
        }
    }

    fn bytes_of(page: &Page) -> &[u8] {
        // SAFETY: a page has this many bytes, all of them initialized, and no test writes to it meanwhile.
        unsafe { std::slice::from_raw_parts(std::ptr::from_ref(page).cast(), PAGE_SIZE) }
    }

    #[test]
    fn whatever_a_process_has_in_its_page_it_is_read_or_refused() {
        let page = Page::zeroed();
        Writer::new(&page).init(&Init::default());
        let (mut read, mut refused) = (0, 0);
        crate::mutations::feed(&[bytes_of(&page).to_vec()], Duration::from_secs(5), 2, |bytes| {
            let Some(page) = PageCopy::from_bytes(bytes) else {
                refused += 1;
                return;
            };
            read += 1;
            let _ = of_page(&page);
            let reader = Reader::new(&page);
            let _ = (reader.history().count(), reader.watch());
            for clock in Clock::SERVED {
                let _ = reader.floor(clock.id() as u32, || u64::MAX);
            }
        });
        assert!(read > 0 && refused > 0, "{read} read, {refused} refused");
    }

    #[test]
    fn a_withdrawn_page_tells_why() {
        let page = Page::zeroed();
        let writer = Writer::new(&page);
        writer.init(&Init::default());
        writer.withdraw(Reason::CounterStopped, || 0);
        writer.note_withdrawal(&Withdrawal {
            boottime_ns: 5_000_000_000,
            reason: Reason::CounterStopped,
            ahead_ns: Some(-70),
        });
        let tree = Tree::new(&[]);
        tree.add("proc/7/mem", bytes_of(&page));
        let maps = [mapping("/memfd:fastpath-page (deleted)", 0)];
        let facts = look(&tree.root(), "7", &maps).unwrap();
        assert!(facts.withdrawn.as_ref().unwrap().contains("stopped"), "{facts:?}");
        let history = facts.experience.expect("a page").history;
        assert_eq!((history.len(), history[0].ahead_ns), (1, Some(-70)));
        assert!(facts.serves.is_none_or(|serves| serves.is_empty()));
    }

    #[test]
    fn a_page_that_may_not_be_read_is_there_all_the_same() {
        let root = Tree::new(&[]).root();
        let maps = [mapping("/memfd:fastpath-page (deleted)", 0x1000)];
        assert_eq!(look(&root, "7", &maps), Some(PageFacts::default()));
        assert_eq!(root.into_unseen().len(), 1);
        assert_eq!(look(&Tree::new(&[]).root(), "7", &[mapping("[vdso]", 0)]), None);
    }
}
