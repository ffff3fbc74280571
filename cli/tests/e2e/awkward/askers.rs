//! Processes that are killed while they wait for their attendant.

use crate::common::{comes_to, helper_program, served};

#[test]
fn the_next_program_is_served_after_a_thousand_were_killed_while_asking() {
    let path = needed!(helper_program("killed-askers", "cc", &[]));
    let leaf = ["grep", "-c", "memfd:fastpath-page", "/proc/self/maps"];
    let command = [&[path.as_str(), "1000"], &leaf[..]].concat();
    comes_to(|| served(&command), 0, "1");
}
