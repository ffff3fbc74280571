//! What asks its attendant for something, and does not live to see it.

use crate::common::{comes_to, helper_program, served};

#[test]
fn a_thousand_children_killed_as_they_ask_do_not_keep_the_next_from_being_served() {
    let Some(path) = helper_program("killed-askers", "cc", &[]) else {
        return;
    };
    let leaf = ["grep", "-c", "memfd:fastpath-page", "/proc/self/maps"];
    let command = [&[path.as_str(), "1000"], &leaf[..]].concat();
    comes_to(|| served(&command), 0, "1");
}
