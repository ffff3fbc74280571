//! Patterns of paths.

use globset::{GlobBuilder, GlobMatcher};
use serde::Deserialize;

/// A pattern of paths or units, in the syntax of the crate `globset`: `*` matches any part of a name, `?` one character
/// of it, and `**` as a whole name any number of folders.
#[derive(Clone, Debug, Deserialize)]
#[serde(try_from = "String")]
pub(super) struct Glob(GlobMatcher);

impl TryFrom<String> for Glob {
    type Error = String;

    fn try_from(pattern: String) -> Result<Glob, String> {
        if pattern.is_empty() {
            return Err("a pattern that is empty fits nothing".into());
        }
        if pattern.contains('/') && !pattern.starts_with(['/', '*']) || !pattern.contains(['/', '*', '.']) {
            return Err(format!(
                "`{pattern}` fits nothing: paths begin with `/`, and units end in `.service` and the like"
            ));
        }
        let glob = GlobBuilder::new(&pattern).literal_separator(true).build();
        Ok(Glob(glob.map_err(|e| e.to_string())?.compile_matcher()))
    }
}

impl PartialEq for Glob {
    fn eq(&self, other: &Glob) -> bool {
        self.0.glob() == other.0.glob()
    }
}

impl Glob {
    /// Returns whether the pattern matches all of `text`, in time linear in its length.
    pub(super) fn matches(&self, text: &str) -> bool {
        self.0.is_match(text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn matches(pattern: &str, text: &str) -> bool {
        Glob::try_from(pattern.to_owned()).expect(pattern).matches(text)
    }

    #[test]
    fn a_star_stays_within_a_name_and_two_do_not() {
        assert!(matches(
            "/usr/lib/postgresql/*/bin/postgres",
            "/usr/lib/postgresql/17/bin/postgres"
        ));
        assert!(!matches("/usr/*/postgres", "/usr/lib/postgresql/17/bin/postgres"));
        assert!(matches("/usr/**/postgres", "/usr/lib/postgresql/17/bin/postgres"));
        assert!(matches("/usr/**", "/usr/bin/python3.13"));
        assert!(matches("/usr/bin/python3.??", "/usr/bin/python3.13"));
        assert!(!matches("/usr/bin/python3.??", "/usr/bin/python3./x"));
        assert!(!matches("/usr/bin/python", "/usr/bin/python3"));
        assert!(matches("*@*.service", "postgresql@17-main.service"));
        assert!(matches("/usr/bin/*", "/usr/bin/"));
    }

    #[test]
    fn a_pattern_made_to_take_long_does_not() {
        let pattern = format!("/{}b", "*a".repeat(200));
        assert!(!matches(&pattern, &format!("/{}", "a".repeat(4000))));
    }

    #[test]
    fn what_can_fit_nothing_is_refused() {
        for pattern in ["", "relative/path", "postgres"] {
            assert!(Glob::try_from(pattern.to_owned()).is_err(), "{pattern}");
        }
    }
}
