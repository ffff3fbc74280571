//! What stands in place of a part that the file does not contain.

use crate::data::{Host, Part};
use crate::words::{ended, sentence};
use maud::{Markup, html};

/// Renders the reason why a part is missing, or a general one if it is not known.
pub(super) fn why_missing(host: &Host, part: Part) -> Markup {
    let missing = host.missing.iter().find(|missing| missing.what == part);
    html! {
        p.missing {
            @match missing {
                Some(missing) => { "Not measured: " (sentence(&ended(&missing.why))) },
                None => { "Not measured: the file contains only a probe. " code { "fastpath report --json" } " on the host measures everything." },
            }
        }
    }
}
